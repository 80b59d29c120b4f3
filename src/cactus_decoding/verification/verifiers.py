"""From a step's logits to its outcome: how a rule, a budget and a way to verify go together in one response."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cactus_decoding.budgets import metering
from cactus_decoding.budgets.budget import Budget
from cactus_decoding.budgets.metering import BudgetState, Plan
from cactus_decoding.budgets.scaling import RulePerPosition
from cactus_decoding.budgets.spending import FittedPolicy
from cactus_decoding.divergences.rows import normalised
from cactus_decoding.rules import Lossless
from cactus_decoding.sampling.params import SamplingParams
from cactus_decoding.types import (
    AcceptanceRule,
    LogitsToProbs,
    Outcome,
    Proposal,
    StepRows,
    TreeRows,
    Verification,
    Visit,
    judges_untempered,
)
from cactus_decoding.verification.block import verify_block
from cactus_decoding.verification.logits import verify_confined, verify_logits
from cactus_decoding.verification.plain import verify
from cactus_decoding.verification.trees import TREE_SCHEMES
from cactus_decoding.verification.trees.judging import NodeJudge, NodeRecord
from cactus_decoding.verification.trees.match import match
from cactus_decoding.verification.trees.tree import ProposedTree
from cactus_decoding.verification.trees.walk import RandomNumbers, Trial

CHAIN_VERIFICATIONS = ("token", "block")
"""One proposal after another, or all of a step jointly."""
VERIFIED_JOINTLY = ("block", "joint", "traversal")
"""Those that look at a step as a whole. Without branches they come to verification in blocks."""
VERIFICATIONS = (*CHAIN_VERIFICATIONS, *(name for name in TREE_SCHEMES if name != "token"))
"""Those and further ones for trees."""


@dataclass(frozen=True, eq=False)
class Verifier:
    """Decides on the steps of a response: a budget's state goes in, and comes out with the step's outcome.

    Attributes:
        rule: the acceptance rule.
        to_probs: the request's sampling: logits to probabilities.
        untempered: the same before temperature and truncation.
        sampling: what ``to_probs`` does, where it is nothing else: then rows need not be turned into probabilities.
        budget: limits, or measures, how far the response's distribution moves.
        verification: ``token`` or ``block``; for trees one of `TREE_SCHEMES`.
        policy: where the rule may relax; None for everywhere.
    """

    rule: AcceptanceRule
    to_probs: LogitsToProbs
    untempered: LogitsToProbs
    sampling: SamplingParams | None = None
    budget: Budget | None = None
    verification: str = "token"
    policy: FittedPolicy | None = None

    def begin(self, prompt_ids: Sequence[int] = ()) -> BudgetState:
        """Return the state of a response to a prompt that has spent nothing."""
        state = metering.begin(self.budget, self.rule)
        return state if self.policy is None else state._replace(phase=self.policy.begin(prompt_ids))

    def __call__(
        self,
        state: BudgetState,
        logits: Tensor,
        token_ids: list[int],
        proposal: Proposal,
        generator: torch.Generator | None,
    ) -> tuple[BudgetState, Outcome]:
        """Decide on a proposal.

        Args:
            state: of the response before this step.
            logits: the target's rows, ``[len(proposal.token_ids) + 1, vocabulary]``.
            token_ids: all the tokens, the proposal at their end.
            proposal: what the drafter proposes.
            generator: source of the random numbers, on the target's device.
        """
        if not proposal.is_chain:
            return self._verify_tree(
                state, TreeRows(logits, token_ids, proposal, self.to_probs, self.untempered), generator
            )
        rows = StepRows(logits, token_ids, proposal, self.to_probs, self.untempered)
        drafted = torch.tensor(proposal.token_ids, dtype=torch.long, device=logits.device)
        if self.budget is None and not judges_untempered(self.rule):
            if self.policy is None:
                return state, _outcome(self._verify(rows, drafted, generator), rows, self.rule)
            lazily = self.sampling is not None and self.verification == "token" and self.policy.reads_target_only
            if lazily and logits.device.type == "cpu":
                outcome = self._verify_confined(self.policy, state, rows, drafted, generator)
                return self._after(state, outcome), outcome
        rule, draft_probs = metering.rule_of_step(self.rule, state), proposal.probs
        target_probs, metered = rows.target(), self.budget is not None or judges_untempered(rule)
        if metered and not judges_untempered(rule):
            # what is charged and what decides are the laws that tokens are drawn from, whatever rows sum to
            target_probs = normalised(target_probs)
            draft_probs = None if draft_probs is None else normalised(draft_probs)
        judged = (rows.untempered() if judges_untempered(rule) else target_probs)[:-1]
        if self.policy is not None:
            rule = self.policy.scaled(rule, judged, draft_probs, proposal.token_ids)
        plan = self._plan(rule, state, judged, draft_probs, drafted)
        scheme = verify_block if self.verification in VERIFIED_JOINTLY else verify
        result = scheme(plan.rule, target_probs, draft_probs, drafted, generator, validate=False)
        nats = None
        if metered:
            state, nats = metering.charge(state, plan.costs, plan.fell_back, int(result.num_accepted))
        outcome = _outcome(result, rows, rule, plan.protected, plan.fell_back, nats)
        return self._after(state, outcome), outcome

    def _verify_tree(
        self, state: BudgetState, rows: TreeRows, generator: torch.Generator | None
    ) -> tuple[BudgetState, Outcome]:
        """Decide on a tree: walk it, and charge the nodes that were visited."""
        proposal, count = rows.proposal, len(rows.proposal.token_ids)
        rule, scheme = metering.rule_of_step(self.rule, state), TREE_SCHEMES[self.verification]
        metered = self.budget is not None or judges_untempered(rule)
        numbers = torch.rand(
            RandomNumbers.needed(count), dtype=torch.float64, generator=generator, device=rows.logits.device
        ).cpu()
        tree = ProposedTree(rows)
        judge = NodeJudge(tree, rule, state, metered=metered, policy=self.policy)
        walk = scheme(tree, judge, RandomNumbers(numbers, count))
        trials = walk.trials
        if scheme is not match and not isinstance(rule, Lossless):
            without_a_rule = NodeJudge(tree, _LOSSLESS, state, metered=False)
            trials = walk.compared_with(scheme(tree, without_a_rule, RandomNumbers(numbers, count)))
        visits = [_visit(trial, judge.records[trial.parent], rows, metered=metered) for trial in trials]
        records = [judge.records[trial.parent] for trial in trials]
        if metered:
            costs, fell_back = [each.cost for each in records], [each.fell_back for each in records]
            state, _ = metering.charge(state, costs, fell_back, len(walk.path))
        outcome = Outcome(proposal, walk.path, walk.next_token, visits, rows, len(walk.path) + 1)
        return self._after(state, outcome), outcome

    def _after(self, state: BudgetState, outcome: Outcome) -> BudgetState:
        """Return the state behind a step, which has paid already: the policy reads on."""
        if self.policy is None:
            return state
        return state._replace(phase=self.policy.after(state.phase, outcome.all_token_ids))

    def _plan(
        self, rule: AcceptanceRule, state: BudgetState, judged: Tensor, draft_probs: Tensor | None, drafted: Tensor
    ) -> Plan:
        """Decide at which of a step's drafted positions a rule judges."""
        relaxable = None
        if self.policy is not None:
            relaxable = self.policy.relaxable(state.phase, judged, draft_probs, drafted.tolist())
        if judges_untempered(rule):
            return metering.plan_greedy_step(
                rule, judged, drafted, limit=state.limit, spent=state.spent, relaxable=relaxable
            )
        if self.budget is None and relaxable is not None:
            return metering.confine(rule, relaxable, judged, draft_probs)
        return metering.plan_step(
            rule, judged, draft_probs, drafted, limit=state.limit, spent=state.spent, relaxable=relaxable
        )

    def _verify(self, rows: StepRows, drafted: Tensor, generator: torch.Generator | None) -> Verification:
        """Verify by one rule at every position, straight from the logits where that is possible."""
        draft_probs = rows.proposal.probs
        if self.verification in VERIFIED_JOINTLY:
            return verify_block(self.rule, rows.target(), draft_probs, drafted, generator, validate=False)
        if self.sampling is None:
            return verify(self.rule, rows.target(), draft_probs, drafted, generator, validate=False)
        return verify_logits(self.rule, rows.logits, self.sampling, draft_probs, drafted, generator, validate=False)

    def _verify_confined(
        self,
        policy: FittedPolicy,
        state: BudgetState,
        rows: StepRows,
        drafted: Tensor,
        generator: torch.Generator | None,
    ) -> Outcome:
        """Verify straight from the logits, by the rule only where a policy lets it."""
        assert self.sampling is not None
        proposal = rows.proposal
        relaxable = policy.relaxable_lazily(state.phase, proposal.token_ids)
        result, relaxed = verify_confined(
            self.rule, rows.logits, self.sampling, proposal.probs, drafted, generator, relaxable
        )
        return _outcome(result, rows, self.rule, [not each for each in relaxed])


_LOSSLESS = Lossless()


def _visit(trial: Trial, record: NodeRecord, rows: TreeRows, *, metered: bool) -> Visit:
    """Return the record of a node's children that were judged."""
    return Visit(
        trial.node,
        rows.proposal.token_ids[trial.node],
        record.rule,
        accepted=trial.accepted,
        relaxed=trial.relaxed,
        nats=record.nats if metered else None,
        fell_back=record.fell_back,
        protected=record.protected,
        rows=rows,
        matched=trial.matched,
    )


def _outcome(
    result: Verification,
    rows: StepRows,
    rule: AcceptanceRule,
    protected: Sequence[bool] | None = None,
    fell_back: Sequence[bool] | None = None,
    nats: Sequence[float] | None = None,
) -> Outcome:
    """Return what was decided on one sequence, with a record of each position that was visited."""
    drafted, num_accepted = rows.proposal.token_ids, int(result.num_accepted)
    relaxed = result.relaxed.tolist()
    rules = rule.rules if isinstance(rule, RulePerPosition) else [rule] * len(drafted)
    visits = []
    for node, token_id in enumerate(drafted[: num_accepted + 1]):
        over = fell_back is not None and fell_back[node]
        kept_away = protected is not None and protected[node]
        visits.append(
            Visit(
                node,
                token_id,
                _LOSSLESS if over or kept_away else rules[node],
                accepted=node < num_accepted,
                relaxed=node < num_accepted and relaxed[node],
                nats=None if nats is None else nats[node],
                fell_back=over,
                protected=kept_away,
                rows=rows,
            )
        )
    return Outcome(rows.proposal, list(range(num_accepted)), int(result.next_token), visits, rows, num_accepted + 1)
