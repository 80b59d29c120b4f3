"""Hierarchical speculative decoding: a chain from its end, by what each branch has too much or too little of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from cactus_decoding.core.types import ROOT
from cactus_decoding.core.verification.tree import RandomSource, RuleAt, Tree, Walk, left_over, ratio, recovery_weights


def hsd(tree: Tree, judge: RuleAt, chance: RandomSource) -> Walk:
    r"""Keep the whole chain, or else the longest beginning after which the draft's branches leave enough over.

    With :math:`r_i` the product of h(n) / p(n) over the first i tokens, and capped :math:`r^*_i = r_i / \max(1, r_1,
    \dots, r_i)`, all k tokens are kept with probability :math:`r^*_k`. Otherwise, from i = k - 1 down to 0,

    .. math:: D^+ = \sum_x (r^*_i h(x) - p(x))_+, \qquad D^- = \sum_x (p(x) - r^*_i h(x))_+

    are what the branches after i tokens have too little and too much of, and i are kept with probability :math:`D^+ /
    \max(D^+, D^-)`, which is 1 for i = 0. The next token is then drawn in proportion to :math:`(r^*_i h - p)_+`.

    As :math:`r^*_i = \min(1, r^*_{i-1} h(n_i) / p(n_i))` and :math:`D^- - D^+ = 1 - r^*_i`, this is block verification:
    it keeps the same tokens with the same random numbers. The arguments are those of `match`.

    Source: Zhou et al. (arXiv 2601.05724), for h = q. Its abstract and its code were at hand; the code caps so in its
    simulation. But it keeps a whole chain by the ratio before the cap, which is not lossless.
    """
    levels, path, capped, node = [], list[int](), 1.0, ROOT
    while (position := tree.at(node)) is not None:
        h, draft, token = position.relaxed_row(judge(position)), position.distribution(0).probs, position.token_ids[0]
        levels.append(Level(capped, h, draft))
        capped = min(1.0, capped * ratio(h[token].item(), draft[token].item()))
        node = position.nodes[0]
        path.append(node)
    return verify_from_end(tree, path, levels, capped, chance)


class Level(NamedTuple):
    """What is known after some tokens of a chain: the capped ratio, and the rows of the next token."""

    capped: float
    h: Tensor
    draft: Tensor


def verify_from_end(
    tree: Tree, path: Sequence[int], levels: Sequence[Level], capped: float, chance: RandomSource
) -> Walk:
    """Keep a whole path with the probability ``capped``, or else a beginning, as `hsd` says."""
    path, node = [*path], path[-1] if path else ROOT
    if node == ROOT or chance.below(node, capped):
        return Walk.along(tree, path, tree.draw_after(node, chance))
    for level in reversed(levels):
        path.pop()
        missing = left_over(level.capped * level.h, level.draft)
        lacking, excess = missing.sum().item(), left_over(level.draft, level.capped * level.h).sum().item()
        # a ratio of 1 stays even where rounding leaves nothing
        stays = 1.0 if level.capped == 1 else ratio(lacking, max(lacking, excess))
        if not path or chance.below(path[-1], stays):
            break
    return Walk.along(tree, path, chance.token(recovery_weights(missing, level.h)))
