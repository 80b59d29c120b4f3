"""FLy: overrule a rejection where the target is unsure and accepts the proposals that follow."""

from __future__ import annotations

import math

import torch

from cactus_decoding.core.policy.position import OneHotDistribution, Position
from cactus_decoding.core.schemes import FlyKnobs
from cactus_decoding.core.types import ROOT, Visit
from cactus_decoding.core.verification.tree import Judge, RandomSource, Tree, Walk, ratio, residual


def fly(tree: Tree, judge: Judge, chance: RandomSource, knobs: FlyKnobs, *, greedy: bool) -> Walk:
    r"""Walk along a chain as `match` does for the lossless rule, but keep some tokens that its test rejects.

    Token :math:`n_j` is kept against the test, if the target gives it any probability, the entropy of the target's row
    is at least ``threshold`` and each of :math:`n_{j+1}, \dots, n_{j+W}` passes its own test, with W the ``window``. At
    least W proposals must follow, and at least ``behind``. After any other rejection the token is drawn from :math:`(q
    - p)_+`. The entropy is that of the row that tokens are sampled from, or at temperature 0 of the row before
    temperature.

    With ``test=draws`` a token passes with probability :math:`1 - (1 - q(n))^2`, the probability that one of two draws
    of the target is n. After a rejection the first draw follows: a draw from q without n. So the draft's row plays no
    part, and even without overruling anything the tokens are not distributed as q.

    Nothing is guaranteed: what is emitted at a position depends on the proposals after it, and no bound is known.

    The arguments are those of `match`, with a lossless rule, and whether the temperature is 0 (``greedy``).

    Source: Li et al., "Training-free loosely speculative decoding" (arXiv 2511.22972), and vLLM's ``fly``.
    """
    visits: list[Visit] = []
    node, path = ROOT, list[int]()
    while (position := tree.at(node)) is not None:
        decision, child = judge(position), position.nodes[0]
        kept = _passes(position, chance, knobs)
        kept = kept or (_is_open(position, knobs, greedy=greedy) and _goes_on(tree, position, chance, knobs))
        relaxed = kept and not _passes(position, chance, FlyKnobs())
        visits.append(Visit(tree.rows, child, decision, kept, relaxed))
        if not kept:
            target, draft = position.target.probs, position.distribution(0).probs
            if knobs.test == "draws":
                draft = OneHotDistribution(position.token_ids[0], position.vocabulary).probs
            return Walk(path, chance.token(residual(target, draft, torch.tensor(1.0))), visits)
        node = child
        path.append(node)
    return Walk(path, tree.draw_after(node, chance), visits)


def _passes(position: Position, chance: RandomSource, knobs: FlyKnobs) -> bool:
    token = position.token_ids[0]
    q = position.target[token]
    bar = 1 - (1 - q) ** 2 if knobs.test == "draws" else ratio(q, position.distribution(0)[token])
    return chance.below(position.nodes[0], bar)


def _is_open(position: Position, knobs: FlyKnobs, *, greedy: bool) -> bool:
    """Return whether the target may emit the token, and is unsure enough."""
    row = position.untempered.double() if greedy else position.target.probs
    listed = row.topk(min(knobs.top_k or len(row), len(row))).values
    entropy = torch.special.entr(listed).sum().item() / (1.0 if knobs.top_k else math.log(len(row)))
    return row[position.token_ids[0]].item() > 0 and entropy >= knobs.threshold


def _goes_on(tree: Tree, position: Position, chance: RandomSource, knobs: FlyKnobs) -> bool:
    for place in range(knobs.room):
        ahead = tree.at(position.nodes[0])
        if ahead is None or (place < knobs.window and not _passes(ahead, chance, knobs)):
            return False
        position = ahead
    return True
