"""Joint verification of a tree: leaves first, with weights that make no child more or less likely than it should be."""

from __future__ import annotations

from torch import Tensor

from cactus_decoding.core.policy.position import Position
from cactus_decoding.core.types import ROOT
from cactus_decoding.core.verification.tree import Judge, RandomSource, Tree, Walk, left_over, ratio, recovery_weights


def joint(tree: Tree, judge: Judge, chance: RandomSource) -> Walk:
    r"""Keep the first node, children before their parent, whose test passes; then draw the token after it.

    With h the relaxed target's row after a node of weight w (1 for the text), S its fixed children and n ~ p' the one
    that is drawn,

    .. math:: Z = 1 - w + \sum_x (w h(x) - p'(x))_+, \qquad P(n) = \min(1, w h(n) / p'(n)), \qquad
       P(u) = w h(u) (1 - P(n)) / Z \text{ for } u \in S, \qquad P(\text{none}) = (1 - w) (1 - P(n)) / Z.

    The weight of a child is P(child) over 1 less the P of those before it. A leaf passes with its weight. Another node,
    once nothing after it has passed, passes with probability 1 - P(none) / (1 - sum of P). The token after it is then
    drawn in proportion to :math:`(w h - p')_+` without S, and after a leaf from the target's row.

    On a chain this is block verification. The arguments are those of `match`.

    Source: UniVer (arXiv 2605.04543), there for h = q.
    """
    fired = _fire(tree, judge, chance, ROOT, 1.0)
    assert fired is not None  # the text's weight is 1
    return Walk.along(tree, judge, *fired)


def _fire(tree: Tree, judge: Judge, chance: RandomSource, node: int, weight: float) -> tuple[list[int], int] | None:
    """Return the path from a node to the one that passes and the token after that; None if no node passes."""
    position = tree.at(node)
    if position is None:
        return ([], tree.draw_after(node, chance)) if _passes(chance, node, weight) else None
    h = position.relaxed_row(judge(position).rule)
    shares, recovery, nothing = _shares(position, h, weight)
    # each chance over what is still to come, added up from the end to avoid a difference of close numbers
    for index, child in enumerate(position.nodes):
        ahead = sum(shares[index:]) + nothing
        fired = _fire(tree, judge, chance, child, ratio(shares[index], ahead))
        if fired is not None:
            return [child, *fired[0]], fired[1]
    # a node of weight 1 passes for certain, even if rounding leaves everything to its children
    passes = _passes(chance, node, 1.0 if weight == 1 else ratio(shares[-1], shares[-1] + nothing))
    return ([], chance.token(recovery_weights(recovery, h))) if passes else None


def _shares(position: Position, h: Tensor, weight: float) -> tuple[list[float], Tensor, float]:
    """Return P of each child and then of the recovered token, the weights that this is drawn by, and P(none)."""
    if len(position.nodes) - position.num_fixed > 1:
        raise ValueError(
            "joint verification takes at most one drawn child a node, but one has "
            f"{len(position.nodes) - position.num_fixed}"
        )
    scaled, drafted = weight * h, position.drafted
    draft, token = position.distribution(drafted).probs, position.token_ids[drafted]
    kept = min(1.0, ratio(scaled[token].item(), draft[token].item()))
    recovery = left_over(scaled, draft)
    rest = ratio(1 - kept, 1 - weight + recovery.sum().item())
    others = [each for each in position.token_ids if each != token]
    shares = [kept if each == token else scaled[each].item() * rest for each in position.token_ids]
    recovery[others] = 0.0
    return [*shares, recovery.sum().item() * rest], recovery, (1 - weight) * rest


def _passes(chance: RandomSource, node: int, probability: float) -> bool:
    return node == ROOT or chance.below(node, probability)
