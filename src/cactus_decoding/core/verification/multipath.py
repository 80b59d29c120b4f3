"""Multi-path block verification: of several independent drafts the one that suits the target best, as a block."""

from __future__ import annotations

import torch

from cactus_decoding.core.policy.position import Position
from cactus_decoding.core.types import ROOT
from cactus_decoding.core.verification.hsd import Level, verify_from_end
from cactus_decoding.core.verification.tree import RandomSource, RuleAt, Tree, Walk, ratio


def multipath(tree: Tree, judge: RuleAt, chance: RandomSource) -> Walk:
    r"""Choose one of m independent drafts, and verify it as a block by the distribution that the choice has.

    After each token the draft's tokens are ranked by h(x) / p(x). The draft is chosen whose first token has the
    highest rank, among equal ones that whose second has, and so on. With s the share of drafts, of those that begin no
    higher than the tokens so far, that begin lower, and P(x) and P(<x) the draft's probabilities of tokens up to x and
    below it, :math:`b = s + (1 - s) P(x)` and :math:`a = s + (1 - s) P(<x)`, the chosen draft goes on with x with
    probability

    .. math:: \frac{b^m - a^m}{1 - s^m} = p(x) \frac{\sum_{i<m} b^i a^{m-1-i}}{\sum_{i<m} s^i},

    and s is a / b after x. With m = 1 this is block verification. The arguments are those of `match`.

    Raises:
        ValueError: for a rule whose h depends on the drafted token, and for trees of other shapes than ``independent``.

    Source: greedy multi-path block verification (Thomas and Pal, arXiv 2602.16961), for h = q. Its abstract was read;
    the ranks and the formula are ours.
    """
    levels, path, capped, share, node = [], list[int](), 1.0, 0.0, ROOT
    powers = range(tree.drafts)
    while (position := tree.at(node)) is not None:
        _check(position, tree.drafts)
        h, draft = position.relaxed_row(judge(position)), position.distribution(0).probs
        order = torch.where(draft > 0, h / draft, torch.inf).argsort(stable=True)
        upto = torch.empty_like(draft).index_copy_(0, order, draft[order].cumsum(0))
        b, a = (share + (1 - share) * part for part in (upto, (upto - draft).clamp(min=0)))
        sums = torch.stack([b**i * a ** (tree.drafts - 1 - i) for i in powers]).sum(0)
        chosen = draft * sums / sum(share**i for i in powers)
        ranks = order.argsort()[position.token_ids].tolist()
        index = ranks.index(max(ranks))
        token, node = position.token_ids[index], position.nodes[index]
        levels.append(Level(capped, h, chosen))
        capped = min(1.0, capped * ratio(h[token].item(), chosen[token].item()))
        share = ratio(a[token].item(), b[token].item())
        path.append(node)
    return verify_from_end(tree, path, levels, capped, chance)


def _check(position: Position, drafts: int) -> None:
    if len(position.nodes) > drafts or (drafts > 1 and position.num_fixed):
        raise ValueError(
            f"multipath verification takes drafts that are drawn independently (tree='independent'), but {drafts} "
            f"drafts have {len(position.nodes)} children after one token, of which {position.num_fixed} are not drawn"
        )
