r"""Match: test one proposal, draw what comes in its place if it fails, and go on; for every rule.

At a node the target says q, and its child n was drawn from p. A rule answers with three things: h(n), s and r (1 and h
for a rule that gives a row h; otherwise r is q unless the rule says something else). With u uniform in [0, 1),

.. math:: n \text{ is kept when } u\,p(n) < h(n), \text{ and else } x \text{ is drawn in proportion to }
    (s\,r(x) - p(x))_+

For a row h this emits h exactly: x is kept with probability min(p(x), h(x)), and drawn with (h(x) - p(x))+, because
the rejections, sum (p - h)+, have the mass of what is drawn from, sum (h - p)+. The lossless test has q for h.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cactus_decoding.core.policy.position import Position
from cactus_decoding.core.rules.base import GreedyRule, Rule
from cactus_decoding.core.sampling.rows import SparseProbs
from cactus_decoding.core.types import ROOT, AcceptanceRule, Visit
from cactus_decoding.core.verification.tree import Judge, RandomSource, Tree, Walk, ratio, residual

Recovery = tuple[Tensor, SparseProbs | None]
"""Weights of the token that is drawn, and what lists their tokens; None for the whole vocabulary."""


def _tested(position: Position, rule: AcceptanceRule, chance: RandomSource) -> tuple[bool, Recovery | None]:
    """Test n: return whether the rule keeps it and the lossless test does not, and what to draw from; None if kept."""
    position = position.on_support(rule)  # rows without what the target excludes, where the rule needs no more
    node, n = position.nodes[position.drafted], position.token_ids[position.drafted]
    q, p = position.target, position.distribution(position.drafted)

    losslessly = chance.below(node, ratio(q[n], p[n]))  # u < q(n) / p(n)
    if losslessly and isinstance(rule, Rule) and rule.never_stricter and not rule.whole_draft_row:
        return False, None  # the rule keeps n too, and need not be asked

    verdict = position.judge(rule, p.probs if position.is_drawn else None, torch.tensor([n]))
    h, s = verdict.relaxed_prob.item(), verdict.residual_scale[0]
    if chance.below(node, ratio(h, p[n])):  # u < h(n) / p(n)
        return not losslessly, None

    weights = residual(verdict.recovers_from(q.probs), p.probs, s)  # (s r(x) - p(x))+
    return False, (weights if position.listed is None else weights[:-1], position.listed)


def match(tree: Tree, judge: Judge, chance: RandomSource) -> Walk:
    r"""Walk from the text towards a leaf.

    The p of a node's drafted child is p', the draft's row without the fixed children. If the token that is drawn after
    a rejection is another child of the node, the walk goes on after that. So each token has the distribution that the
    rule emits for the draft row p', whatever else is proposed.

    Where h does not depend on n, a node's children are kept with probability :math:`h(S) + \sum_{x \notin S}
    \min(h(x), p'(x))`, S the fixed ones: the most for such children (Hu et al., arXiv 2502.18779, for h = q).
    """
    path: list[int] = []
    visits: list[Visit] = []
    node = ROOT
    while (position := tree.at(node)) is not None:
        decision, child, matched = judge(position), position.nodes[position.drafted], None
        rule = decision.rule
        lazily = tree.lazy and position.is_plain and not isinstance(rule, GreedyRule)
        relaxed, recovery = (_tested_lazily if lazily else _tested)(position, rule, chance)
        if recovery is not None:
            token = chance.token(*recovery)
            matched = position.child_with(token, other_than=child)
        visits.append(Visit(tree.rows, child, decision, recovery is None, relaxed, matched))
        if recovery is not None and matched is None:
            return Walk(path, token, visits)
        tree.leave(node)
        node = child if matched is None else matched
        path.append(node)
    return Walk(path, tree.draw_after(node, chance), visits)


def _tested_lazily(position: Position, rule: AcceptanceRule, chance: RandomSource) -> tuple[bool, Recovery | None]:
    """Do what `_tested` does at a plain position, with rows as they are, and compute no more than the decision needs.

    A rule that promises to accept whatever the lossless test accepts is asked only where that test fails. A rule that
    needs the target's support only is asked about no more than that. A rule that has to solve for its numbers may say
    beforehand that it is sure to accept.
    """
    (token,), (child,), draft_row, row = position.token_ids, position.nodes, position.draft_row, position.row
    needed = chance.number(child) * (1.0 if draft_row is None else draft_row[token].item())
    losslessly = needed < row.probability(token)
    if losslessly and getattr(rule, "never_stricter", False):
        return False, None
    surely_accepts = getattr(rule, "surely_accepts", None)
    if surely_accepts is not None and row.token_ids is None and surely_accepts(needed, row.probs, draft_row, token):
        return not losslessly, None
    if getattr(rule, "support_only", False):
        row, (place,) = row.including([token])
    else:
        row, place = SparseProbs(row.vocabulary, row.dense()), token
    candidate = torch.tensor([place])
    draft = None if draft_row is None else row.restrict(draft_row)
    verdict = rule.judge(row.probs, draft, candidate)
    if needed < verdict.relaxed_prob.item():
        return not losslessly, None
    if draft is None:
        draft = torch.zeros_like(row.probs).index_fill_(0, candidate, 1.0)
    return False, (residual(verdict.recovers_from(row.probs), draft, verdict.residual_scale[0]), row)
