"""Deliberately wrong ways to verify or to grow trees, which the tests must tell from the right ones."""

from __future__ import annotations

from torch import Tensor

from cactus_decoding.core.policy.position import Distribution, Position
from cactus_decoding.core.types import ROOT
from cactus_decoding.core.verification.coupled import coupled
from cactus_decoding.core.verification.joint import _shares
from cactus_decoding.core.verification.tree import RandomSource, RuleAt, TokenSource, Tree, Walk, left_over, ratio
from support.tree_enumeration import Children, LazyTree


def recursive_without_update(tree: Tree, judge: RuleAt, chance: RandomSource) -> Walk:
    """Test every child against h itself, and draw from what the last one leaves of that."""
    path: list[int] = []
    node = ROOT
    while (position := tree.at(node)) is not None:
        h, kept = position.relaxed_row(judge(position)), None
        for index, child in enumerate(position.nodes):
            law, token = position.distribution(index).probs, position.token_ids[index]
            if chance.below(child, ratio(h[token].item(), law[token].item())):
                kept = child
                break
            left = left_over(h, law)
        if kept is None:
            return Walk.along(tree, path, chance.token(left if left.sum() > 0 else h))
        path.append(kept)
        node = kept
    return Walk.along(tree, path, chance.token(tree.row(node).probs))


def joint_with_a_capped_quotient(tree: Tree, judge: RuleAt, chance: RandomSource) -> Walk:
    """Let a node pass with min(Z / remaining, 1), as published ports do."""
    fired = _fire(tree, judge, chance, ROOT, 1.0)
    assert fired is not None
    return Walk.along(tree, *fired)


def _fire(tree: Tree, judge: RuleAt, chance: RandomSource, node: int, weight: float) -> tuple[list[int], int] | None:
    position = tree.at(node)
    if position is None:
        return ([], chance.token(tree.row(node).probs)) if node == ROOT or chance.below(node, weight) else None
    shares, recovery, _ = _shares(position, position.relaxed_row(judge(position)), weight)
    remaining = 1.0
    for index, child in enumerate(position.nodes):
        fired = _fire(tree, judge, chance, child, ratio(shares[index], remaining))
        if fired is not None:
            return [child, *fired[0]], fired[1]
        remaining -= shares[index]
    passes = node == ROOT or chance.below(node, min(ratio(recovery.sum().item(), remaining), 1.0))
    weights = recovery if recovery.sum() > 0 else tree.row(node).probs
    return ([], chance.token(weights)) if passes else None


def coupled_with_a_second_draw(tree: Tree, judge: RuleAt, chance: TokenSource) -> Walk:
    """Keep a proposal if it is the target's token, and draw anew where it is not."""
    walked = coupled(tree, judge, chance)
    row = tree.row(walked.path[-1] if walked.path else ROOT).probs
    return walked if walked.trials and walked.trials[-1].accepted else Walk.along(tree, walked.path, chance.token(row))


class JudgedByTheWholeRow(Position):
    """Takes p, not p', for the law of the drawn child."""

    def distribution(self, index: int) -> Distribution:
        if index == self.num_fixed and self.draft is not None:
            return self.draft
        return super().distribution(index)


class TreeJudgedByTheWholeRow(LazyTree):
    position = JudgedByTheWholeRow


class TreeWithPopularDraftsFirst(LazyTree):
    """Sorts independent drafts by how many begin alike, so that the first is likelier than the draft's row says."""

    def draw_independently(self, draft: Tensor, count: int) -> dict[int, int]:
        return dict(sorted(super().draw_independently(draft, count).items(), key=lambda item: -item[1]))


class TreeWithoutUnlikelyDraws(LazyTree):
    """Drops a drawn child of less than a third of the draft's row, without telling anybody."""

    def _grow(self, node: int) -> Children | None:
        children = super()._grow(node)
        if children is None or children.num_fixed == len(children.nodes):
            return children
        draft = self._models((*self._text, *self.tokens_to(node)))[1]
        if draft[children.token_ids[-1]] > 1 / 3:
            return children
        if len(children.nodes) == 1:
            return None
        return children._replace(nodes=children.nodes[:-1], token_ids=children.token_ids[:-1])


def hsd_as_published(tree: Tree, judge: RuleAt, chance: RandomSource, *, cap: str) -> Walk:
    """Verify as the code of arXiv 2601.05724 does: keep the whole chain by the ratio before any cap.

    Further up, ``cap="once"`` takes min(1, r) for the ratio of a prefix, as its decoder does (``algorithm_clean.py``),
    and ``cap="running"`` the ratio over the largest so far, as its simulation does (``simulation.py``).
    """
    levels, path, product, largest, node = [], list[int](), 1.0, 1.0, ROOT
    while (position := tree.at(node)) is not None:
        h, draft = position.relaxed_row(judge(position)), position.distribution(0).probs
        levels.append(((product / largest if cap == "running" else min(1.0, product)) * h, draft))
        product *= ratio(h[position.token_ids[0]].item(), draft[position.token_ids[0]].item())
        largest, node = max(largest, product), position.nodes[0]
        path.append(node)
    if node == ROOT or chance.below(node, product):
        return Walk.along(tree, path, chance.token(tree.row(node).probs))
    for scaled, draft in reversed(levels):
        path.pop()
        missing, excess = left_over(scaled, draft), left_over(draft, scaled)
        most = max(missing.sum().item(), excess.sum().item())
        if not path or chance.below(path[-1], ratio(missing.sum().item(), most)):
            break
    return Walk.along(tree, path, chance.token(missing if missing.sum() > 0 else draft))
