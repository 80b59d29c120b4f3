"""Which rule judges the children of a node: what a policy lets it, and a budget can afford on the way there."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from cactus_decoding.auditing import Audit, audit_rows
from cactus_decoding.budgets.metering import BudgetState, JudgedOn, admit
from cactus_decoding.budgets.scaling import RulePerPosition
from cactus_decoding.budgets.spending import FittedPolicy
from cactus_decoding.divergences.rows import kl_of_rows
from cactus_decoding.rules import Lossless
from cactus_decoding.rules.emitted import EmittedRows, relaxed_target_beside
from cactus_decoding.rules.relaxed_greedy import given_up
from cactus_decoding.types import ROOT, AcceptanceRule, judges_untempered
from cactus_decoding.verification.trees.tree import Children, Tree
from cactus_decoding.verification.trees.walk import Judgement

_LOSSLESS = Lossless()


class NodeRecord(NamedTuple):
    """What was decided about a node.

    Attributes:
        rule: what judges its children, as people know it.
        judgement: what it does.
        cost: what the request's rule would cost there, in nats; 0 where nobody measures or a policy keeps it away.
        nats: what the node costs if it is visited: nothing where it fell back.
        fell_back: whether the budget could not afford the rule.
        protected: whether a policy did not let it judge.
        spent: nats of the response up to the node, and with it.
    """

    rule: AcceptanceRule
    judgement: Judgement
    cost: float
    nats: float
    fell_back: bool
    protected: bool
    spent: float


def audit_children(rule: AcceptanceRule, target: Tensor, children: Children) -> Audit:
    """Return exactly what a rule emits behind a node, by `match` or `recursive`; the acceptance is its drafted child's.

    Args:
        rule: the rule.
        target: the target's row, float64, a distribution, ``[vocabulary]``.
        children: of the node.
    """
    relaxed = _relaxed(rule, target, children)
    return audit_rows(rule if relaxed is None else EmittedRows(relaxed), target, children.law(children.drafted).probs)


def _relaxed(rule: AcceptanceRule, target: Tensor, children: Children) -> Tensor | None:
    draft, law = children.draft, children.law(children.drafted)
    whole = None if draft is None else draft.probs
    return relaxed_target_beside(rule, target, whole, law.probs, children.fixed_token_ids)


class NodeJudge:
    """Judges nodes by a request's rule, or losslessly where that may not or cannot be spent.

    What a node costs is worked out when it is first asked about, and admitted if it fits into the budget beside what
    the nodes that lead to it cost. So what judges at a node depends on the text before it and on nothing else.

    Args:
        tree: the proposal and the target's rows.
        rule: the rule that spends.
        state: of the response before the step.
        metered: whether costs are to be known.
        policy: where the rule may relax; None for everywhere.
    """

    def __init__(
        self, tree: Tree, rule: AcceptanceRule, state: BudgetState, *, metered: bool, policy: FittedPolicy | None = None
    ) -> None:
        self._tree, self._rule, self._state = tree, rule, state
        self._metered, self._policy = metered, policy
        self.records: dict[int, NodeRecord] = {}

    def __call__(self, node: int) -> Judgement:
        """Return what judges the children of a node; those that lead to it have been asked about before."""
        if node not in self.records:
            children = self._tree.children(node)
            assert children is not None  # nobody asks behind a leaf
            spent = self._state.spent if node == ROOT else self.records[self._tree.parent(node)].spent
            self.records[node] = self._decide(node, children, spent)
        return self.records[node].judgement

    def _decide(self, node: int, children: Children, spent: float) -> NodeRecord:
        rule, protected = self._rule, False
        if self._policy is not None:
            rule, protected = self._allowed(self._policy, node, children)
        judgement = self._judged_by(rule, node, children)
        cost = self._cost(judgement, node, children) if self._metered and not protected else 0.0
        if not self._metered or protected or admit([cost], self._state.limit, spent)[0]:
            return NodeRecord(rule, judgement, cost, cost, False, protected, spent + cost)
        # where the rule costs nothing it asks for nothing
        judgement = self._judged_by(_LOSSLESS, node, children)
        return NodeRecord(_LOSSLESS if cost else rule, judgement, cost, 0.0, cost != 0, protected, spent)

    def _judged_by(self, rule: AcceptanceRule, node: int, children: Children) -> Judgement:
        if judges_untempered(rule):
            return Judgement(JudgedOn(rule, self._tree.untempered(node)))
        return Judgement(rule, lambda: _relaxed(rule, self._tree.target(node).probs, children))

    def _cost(self, judgement: Judgement, node: int, children: Children) -> float:
        """Return the nats of what is emitted at a node, or for a rule for temperature 0 of what it gives up there."""
        target = self._tree.target(node).probs
        if judgement.relaxed is not None:
            return kl_of_rows(judgement.relaxed, target).item()
        drafted = children.drafted
        if isinstance(judgement.rule, JudgedOn):
            token = torch.tensor([children.token_ids[drafted]])
            kept = judgement.rule.judge(target, None, token).relaxed_prob.item() > 0
            return given_up(judgement.rule.rows, token).item() if kept else 0.0
        return audit_children(judgement.rule, target, children).kl.item()

    def _allowed(self, policy: FittedPolicy, node: int, children: Children) -> tuple[AcceptanceRule, bool]:
        """Return the rule that a policy lets judge here, and whether it is none."""
        phase = policy.after(self._state.phase, self._tree.tokens_to(node))
        token_ids, draft = [children.token_ids[children.drafted]], children.draft
        rows = self._tree.target(node).probs[None], None if draft is None else draft.probs[None], token_ids
        if judges_untempered(self._rule):
            rows = self._tree.untempered(node)[None], *rows[1:]
        if not bool(policy.relaxable(phase, *rows)[0]):
            return _LOSSLESS, True
        rule = policy.scaled(self._rule, *rows)
        return rule.rules[0] if isinstance(rule, RulePerPosition) else rule, False
