"""Deliberately wrong ways to verify or to grow trees, which the tests must tell from the right ones."""

from __future__ import annotations

from cactus_decoding.core.policy.position import Distribution, Position
from cactus_decoding.core.types import ROOT
from cactus_decoding.core.verification.coupled import coupled
from cactus_decoding.core.verification.joint import _shares
from cactus_decoding.core.verification.tree import Judge, RandomSource, TokenSource, Tree, Walk, ratio
from support.tree_enumeration import Children, LazyTree


def joint_with_a_capped_quotient(tree: Tree, judge: Judge, chance: RandomSource) -> Walk:
    """Let a node pass with min(Z / remaining, 1), as published ports do."""
    fired = _fire(tree, judge, chance, ROOT, 1.0)
    assert fired is not None
    return Walk.along(tree, judge, *fired)


def _fire(tree: Tree, judge: Judge, chance: RandomSource, node: int, weight: float) -> tuple[list[int], int] | None:
    position = tree.at(node)
    if position is None:
        return ([], chance.token(tree.row(node).probs)) if node == ROOT or chance.below(node, weight) else None
    shares, recovery, _ = _shares(position, position.relaxed_row(judge(position).rule), weight)
    remaining = 1.0
    for index, child in enumerate(position.nodes):
        fired = _fire(tree, judge, chance, child, ratio(shares[index], remaining))
        if fired is not None:
            return [child, *fired[0]], fired[1]
        remaining -= shares[index]
    passes = node == ROOT or chance.below(node, min(ratio(recovery.sum().item(), remaining), 1.0))
    weights = recovery if recovery.sum() > 0 else tree.row(node).probs
    return ([], chance.token(weights)) if passes else None


def coupled_with_a_second_draw(tree: Tree, judge: Judge, chance: TokenSource) -> Walk:
    """Keep a proposal if it is the target's token, and draw anew where it is not."""
    walked = coupled(tree, judge, chance)
    row = tree.row(walked.path[-1] if walked.path else ROOT).probs
    kept = walked.visits and walked.visits[-1].accepted
    return walked if kept else Walk.along(tree, judge, walked.path, chance.token(row))


class JudgedByTheWholeRow(Position):
    """Takes p, not p', for the law of the drawn child."""

    def distribution(self, index: int) -> Distribution:
        if index == self.num_fixed and self.draft is not None:
            return self.draft
        return super().distribution(index)


class TreeJudgedByTheWholeRow(LazyTree):
    position = JudgedByTheWholeRow


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
