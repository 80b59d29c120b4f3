"""Traversal verification: leaves first, each child against what the earlier ones left of its parent's weight."""

from __future__ import annotations

from cactus_decoding.core.types import ROOT
from cactus_decoding.core.verification.tree import Judge, RandomSource, Tree, Walk, left_over, ratio, recovery_weights


def traversal(tree: Tree, judge: Judge, chance: RandomSource) -> Walk:
    r"""Keep the first node, children before their parent, whose test passes; then draw the token after it.

    A node of weight w (1 for the text) with h_1 = h after it gives its child n_i, drawn from p_i as in `recursive`,
    the weight :math:`\min(1, w_i h_i(n_i) / p_i(n_i))`, with w_1 = w. If nothing there passes, with R the sum of
    :math:`(w_i h_i - p_i)_+`, :math:`h_{i+1}` is that over R, and :math:`w_{i+1} = R / (R + 1 - w_i)`. A node passes
    with the weight that its children leave, and the token after it is drawn from the last h; after a leaf from q.

    On a chain this is block verification. The arguments are those of `match`.

    Source: Traversal Verification (arXiv 2505.12398), there for h = q.
    """
    fired = _fire(tree, judge, chance, ROOT, 1.0)
    assert fired is not None  # the text's weight is 1
    return Walk.along(tree, judge, *fired)


def _fire(tree: Tree, judge: Judge, chance: RandomSource, node: int, weight: float) -> tuple[list[int], int] | None:
    """Return the path from a node to the one that passes and the token after that; None if no node passes."""
    position = tree.at(node)
    if position is None:
        return ([], tree.draw_after(node, chance)) if node == ROOT or chance.below(node, weight) else None
    left = position.relaxed_row(judge(position).rule)
    for index, child in enumerate(position.nodes):
        draft, token = position.distribution(index).probs, position.token_ids[index]
        scaled = weight * left
        kept = min(1.0, ratio(scaled[token].item(), draft[token].item()))
        fired = _fire(tree, judge, chance, child, kept)
        if fired is not None:
            return [child, *fired[0]], fired[1]
        rest = left_over(scaled, draft)
        mass = rest.sum().item()
        if weight < 1 or mass > 0:  # else only rounding rejected
            weight = mass / (mass + (1 - weight))
        rest = recovery_weights(rest, left)
        left = rest / rest.sum()
    return ([], chance.token(left)) if node == ROOT or chance.below(node, weight) else None
