"""Recursive rejection: test a node's children one after another, each against what the earlier ones left over."""

from __future__ import annotations

from cactus_decoding.core.types import ROOT
from cactus_decoding.core.verification.tree import Judge, RandomSource, Tree, Walk, left_over, ratio, recovery_weights


def recursive(tree: Tree, judge: Judge, chance: RandomSource) -> Walk:
    r"""Walk from the text towards a leaf, by the first child of each node that passes its test.

    With h_1 = h and p_i the distribution of child i given those before it (the draft's row without them, or probability
    1 for a fixed child), child n_i is kept with probability :math:`\min(1, h_i(n_i) / p_i(n_i))`. After a rejection
    :math:`h_{i+1} \propto (h_i - p_i)_+`. The token after the last rejection is drawn from the last h.

    The arguments are those of `match`.

    Sources: SpecInfer (arXiv 2305.09781); without replacement RSD (arXiv 2402.14160), both for h = q.
    """
    path: list[int] = []
    node = ROOT
    while (position := tree.at(node)) is not None:
        left, kept = position.relaxed_row(judge(position).rule), None
        for index, child in enumerate(position.nodes):
            draft, token = position.distribution(index).probs, position.token_ids[index]
            if chance.below(child, ratio(left[token].item(), draft[token].item())):
                kept = child
                break
            rest = recovery_weights(left_over(left, draft), left)
            left = rest / rest.sum()
        if kept is None:
            return Walk.along(tree, judge, path, chance.token(left))
        path.append(kept)
        node = kept
    return Walk.along(tree, judge, path, tree.draw_after(node, chance))
