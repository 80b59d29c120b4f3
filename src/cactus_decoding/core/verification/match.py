"""Match: judge one child of a node, and go on to another child if the recovered token is that one; for every rule."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from cactus_decoding.core.policy.position import Position
from cactus_decoding.core.rules.base import Rule
from cactus_decoding.core.sampling.rows import SparseProbs
from cactus_decoding.core.types import ROOT, AcceptanceRule, judges_untempered
from cactus_decoding.core.verification.tree import RandomSource, RuleAt, Tree, Trial, Walk, ratio, residual


def match(tree: Tree, judge: RuleAt, chance: RandomSource) -> Walk:
    r"""Walk from the text towards a leaf.

    With p' the distribution of a node's drafted child n, which is the draft's row without the fixed children, the rule
    accepts n as on a chain whose draft has the row p': with u uniform in [0, 1), when :math:`u\,p'(n) < h(n)`. After a
    rejection the token is drawn in proportion to :math:`(s q - p')_+`, and if it is another child of the node, the walk
    goes on after that. So each token has the distribution that the rule emits for the draft row p', whatever else is
    proposed.

    Where h does not depend on n, a node's children are kept with probability :math:`h(S) + \sum_{x \notin S}
    \min(h(x), p'(x))`, S the fixed ones: the most for such children (Hu et al., arXiv 2502.18779, for h = q).
    """
    path: list[int] = []
    trials: list[Trial] = []
    node = ROOT
    while (position := tree.at(node)) is not None:
        rule, child = judge(position), position.nodes[position.drafted]
        lazily = tree.lazy and position.is_plain and not judges_untempered(rule)
        lazily = lazily and not getattr(rule, "needs_relaxed_target", False)
        test = (_test_lazily if lazily else _test)(position, rule, chance)
        matched = None
        if test.recovery is not None:
            token = chance.token(test.recovery, test.row)
            matched = position.child_with(token, other_than=child)
        trials.append(Trial(node, child, test.recovery is None, test.relaxed, matched))
        if test.recovery is not None and matched is None:
            return Walk(path, token, trials)
        tree.leave(node)
        node = child if matched is None else matched
        path.append(node)
    return Walk(path, tree.draw_after(node, chance), trials)


class _Test(NamedTuple):
    relaxed: bool = False  # whether the token is kept though the lossless test rejects it
    recovery: Tensor | None = None  # weights of the next token; None if the drafted one is kept
    row: SparseProbs | None = None  # lists the tokens of the weights; None for all


def _test(position: Position, rule: AcceptanceRule, chance: RandomSource) -> _Test:
    """Test the drafted child by the distributions that tokens are drawn from, whatever rows sum to."""
    position, drafted = position.on_support(rule), position.drafted
    draft, token, child = position.distribution(drafted), position.token_ids[drafted], position.nodes[drafted]
    p, target = draft[token], position.target
    losslessly = chance.below(child, ratio(target[token], p))
    promised = isinstance(rule, Rule) and rule.never_stricter_than_lossless and not rule.needs_whole_draft_row
    if losslessly and promised:
        return _Test()
    judge = position.effective_rule(rule)
    given = draft.probs if position.is_drawn else None
    relaxed_prob, scale = judge.judge(target.probs, given, torch.tensor([token]))
    if chance.below(child, ratio(relaxed_prob.item(), p)):
        return _Test(not losslessly)
    recovery = residual(judge.recovery_target(target.probs), draft.probs, scale[0])
    return _Test(recovery=recovery if position.listed is None else recovery[:-1], row=position.listed)


def _test_lazily(position: Position, rule: AcceptanceRule, chance: RandomSource) -> _Test:
    """Do what `_test` does at a plain position, but take rows as they are and compute no more than the decision needs.

    A rule that promises to accept whatever the lossless test accepts is asked only where that test fails. A rule that
    needs the target's support only is asked about no more than that. A rule that has to solve for its numbers may say
    beforehand that it is sure to accept.
    """
    (token,), (child,), draft_row, row = position.token_ids, position.nodes, position.draft_row, position.row
    needed = chance.number(child) * (1.0 if draft_row is None else draft_row[token].item())
    losslessly = needed < row.probability(token)
    if losslessly and getattr(rule, "never_stricter_than_lossless", False):
        return _Test()
    surely_accepts = getattr(rule, "surely_accepts", None)
    if surely_accepts is not None and row.token_ids is None and surely_accepts(needed, row.probs, draft_row, token):
        return _Test(not losslessly)
    if getattr(rule, "needs_support_only", False):
        row, (place,) = row.including([token])
    else:
        row, place = SparseProbs(row.vocabulary, row.dense()), token
    candidate = torch.tensor([place])
    draft = None if draft_row is None else row.restrict(draft_row)
    relaxed_prob, scale = rule.judge(row.probs, draft, candidate)
    if needed < relaxed_prob.item():
        return _Test(not losslessly)
    if draft is None:
        draft = torch.zeros_like(row.probs).index_fill_(0, candidate, 1.0)
    return _Test(recovery=residual(rule.recovery_target(row.probs), draft, scale[0]), row=row)
