"""From a step's logits to a decision: how a rule, a budget and a way to verify go together in one response."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from cactus_decoding.arguments.checks import check_choice
from cactus_decoding.budgets.budget import Budget, Meter, WhereAdmitted, admit, plan_step
from cactus_decoding.budgets.pacing import Greedy, Paced
from cactus_decoding.rules import ClampedRatio, Lossless, RelaxedGreedy
from cactus_decoding.rules.relaxed_greedy import given_up
from cactus_decoding.sampling.params import SamplingParams
from cactus_decoding.types import AcceptanceRule, Decision, LogitsToProbs, Proposal, Verdict, Verification, Verifier
from cactus_decoding.verification.block import relaxed_target_of, verify_block
from cactus_decoding.verification.logits import verify_logits
from cactus_decoding.verification.plain import verify

VERIFICATIONS = ("token", "block")
"""One proposal after another, or all of a step jointly."""

Verify = Callable[..., Verification]


def make_verifier(
    rule: AcceptanceRule,
    to_probs: LogitsToProbs,
    untempered: LogitsToProbs,
    *,
    greedy: bool,
    sampling: SamplingParams | None = None,
    budget: Budget | None = None,
    verification: str = "token",
    fixed_blocks: bool = True,
) -> Verifier:
    """Return what decides on the steps of one response.

    Args:
        rule: the acceptance rule.
        to_probs: the request's sampling: logits to probabilities.
        untempered: the same before temperature and truncation.
        greedy: whether the request's temperature is 0.
        sampling: what ``to_probs`` does, where it is nothing else: then rows need not be turned into probabilities.
        budget: limits, or measures, how far the response's distribution moves.
        verification: ``token`` or ``block``.
        fixed_blocks: whether every step has the same number of proposals, each drawn given the tokens before it alone.

    Raises:
        ValueError: for a combination that would not keep what it promises.
    """
    check_choice("verification", verification, VERIFICATIONS)
    if isinstance(rule, RelaxedGreedy):
        return _relaxed_greedy(rule, untempered, greedy, budget, verification)
    if verification == "block":
        relaxed_target_of(rule, torch.ones(1, 1), torch.ones(1, 1))  # raises before any work
        if not fixed_blocks and not isinstance(rule, Lossless):
            raise ValueError(
                "block verification of a relaxed rule needs a draft model and a fixed number of proposals, because the "
                "proposals at a position must have the same law in every step; use verification='token'"
            )
        if budget is not None and budget.expected_tokens is not None:
            raise ValueError("block verification cannot pace a budget: the width must be the same in every step")
    scheme = verify_block if verification == "block" else verify
    if budget is None and sampling is not None and verification == "token":
        return LogitsVerifier(rule, sampling)
    if budget is None:
        return RuleVerifier(rule, to_probs, scheme)
    spending: Greedy | Paced = Greedy(rule)
    if budget.expected_tokens is not None:
        if not isinstance(rule, ClampedRatio) or not rule.width:
            raise ValueError(
                "expected_tokens moves the width of the clamped ratio, so the rule must be clamped:width=... with a "
                f"width above 0, but is {rule!s}"
            )
        spending = Paced(rule.width, budget.limit, budget.expected_tokens)
    return MeteredVerifier(spending, budget.limit, to_probs, scheme)


def _relaxed_greedy(
    rule: RelaxedGreedy, untempered: LogitsToProbs, greedy: bool, budget: Budget | None, verification: str
) -> Verifier:
    if not greedy:
        raise ValueError("relaxed_greedy is a rule for temperature 0 (greedy decoding); set the temperature to 0")
    if verification != "token":
        raise ValueError("relaxed_greedy draws nothing, so verification must be 'token'")
    if budget is not None and (budget.max_shift is not None or budget.expected_tokens is not None):
        raise ValueError("with relaxed_greedy a budget limits the log-probability given up: give its nats, no more")
    return RelaxedGreedyVerifier(rule, math.inf if budget is None else budget.limit, untempered)


class RuleVerifier:
    """One rule at every position."""

    def __init__(self, rule: AcceptanceRule, to_probs: LogitsToProbs, scheme: Verify = verify) -> None:
        """Keep the rule, the request's sampling, and the way to verify."""
        self._rule, self._to_probs, self._scheme = rule, to_probs, scheme

    def __call__(
        self, logits: Tensor, token_ids: list[int], proposal: Proposal, generator: torch.Generator | None
    ) -> Decision:
        """Decide by the rule."""
        target_probs = self._to_probs(logits, token_ids)
        return _decide(self._scheme, self._rule, target_probs, proposal, generator)


class LogitsVerifier:
    """One rule at every position, straight from the logits."""

    def __init__(self, rule: AcceptanceRule, sampling: SamplingParams) -> None:
        """Keep the rule and the request's sampling."""
        self._rule, self._sampling = rule, sampling

    def __call__(
        self, logits: Tensor, token_ids: list[int], proposal: Proposal, generator: torch.Generator | None
    ) -> Decision:
        """Decide by the rule."""
        drafted = torch.tensor(proposal.token_ids, dtype=torch.long, device=logits.device)
        return _on_host(verify_logits(self._rule, logits, self._sampling, proposal.probs, drafted, generator))


class MeteredVerifier:
    """A rule while the budget lasts, and the lossless rule at positions that it cannot afford.

    Attributes:
        meter: counts the nats.
    """

    def __init__(self, spending: Greedy | Paced, limit: float, to_probs: LogitsToProbs, scheme: Verify) -> None:
        """Begin a response."""
        self.meter = Meter(limit)
        self._spending, self._to_probs, self._scheme = spending, to_probs, scheme

    def __call__(
        self, logits: Tensor, token_ids: list[int], proposal: Proposal, generator: torch.Generator | None
    ) -> Decision:
        """Admit positions, decide, and charge those that were visited."""
        target_probs = self._to_probs(logits, token_ids)
        drafted = torch.tensor(proposal.token_ids, dtype=torch.long, device=logits.device)
        rule = self._spending.rule(self.meter.limit - self.meter.spent)
        limit, spent = self.meter.limit, self.meter.spent
        plan = plan_step(rule, target_probs[:-1], proposal.probs, drafted, limit=limit, spent=spent)
        decision = _decide(self._scheme, plan.rule, target_probs, proposal, generator)
        nats, fell_back = self.meter.charge(plan.costs, plan.fell_back, decision.num_accepted)
        self._spending.observe(plan.costs[: len(nats)], decision.num_accepted + 1)
        return decision._replace(nats=nats, fell_back=fell_back)


class RelaxedGreedyVerifier:
    """Greedy decoding that keeps what is almost as likely, and meters the log-probability given up.

    Attributes:
        meter: counts the nats of log-probability.
    """

    def __init__(self, rule: RelaxedGreedy, limit: float, untempered: LogitsToProbs) -> None:
        """Begin a response."""
        self.meter = Meter(limit)
        self._rule, self._untempered = rule, untempered

    def __call__(
        self, logits: Tensor, token_ids: list[int], proposal: Proposal, generator: torch.Generator | None
    ) -> Decision:
        """Judge on the rows before temperature; recovered and bonus token are the most likely ones."""
        rows = self._untempered(logits, token_ids)
        drafted = torch.tensor(proposal.token_ids, dtype=torch.long, device=logits.device).unsqueeze(-1)
        kept = self._rule.judge(rows[:-1], None, drafted).relaxed_prob > 0
        costs = torch.where(kept, given_up(rows[:-1], drafted), 0.0).squeeze(-1).tolist()
        admitted = admit(costs, self.meter.limit, self.meter.spent)
        fits = torch.tensor(admitted, dtype=torch.bool, device=logits.device).unsqueeze(-1)
        judge = WhereAdmitted(JudgedOn(self._rule, rows[:-1]), fits)
        target_probs = one_hot(rows.argmax(-1), rows.shape[-1]).to(rows.dtype)
        decision = _decide(verify, judge, target_probs, proposal, generator)
        nats, fell_back = self.meter.charge(costs, [not fit for fit in admitted], decision.num_accepted)
        return decision._replace(nats=nats, fell_back=fell_back)


@dataclass(frozen=True, eq=False)
class JudgedOn:
    """A rule that is asked about other rows than those that are sampled from.

    Attributes:
        rule: the rule.
        rows: what it judges on, ``[k, vocabulary]``.
    """

    rule: AcceptanceRule
    rows: Tensor

    def __str__(self) -> str:
        """The rule's own."""
        return str(self.rule)

    def judge(self, target_probs: Tensor, draft_probs: Tensor | None, token_ids: Tensor) -> Verdict:
        """Return the rule's two numbers on its rows."""
        return self.rule.judge(self.rows.expand_as(target_probs), draft_probs, token_ids)

    def recovery_target(self, target_probs: Tensor) -> Tensor:
        """Recover from the rows that are sampled from."""
        return target_probs

    def relaxed_target(self, target_probs: Tensor, draft_probs: Tensor) -> None:
        """Say that there are no rows that are emitted whatever is drafted."""
        return None


def _decide(
    scheme: Verify, rule: AcceptanceRule, target_probs: Tensor, proposal: Proposal, generator: torch.Generator | None
) -> Decision:
    """Verify one sequence."""
    drafted = torch.tensor(proposal.token_ids, dtype=torch.long, device=target_probs.device)
    return _on_host(scheme(rule, target_probs, proposal.probs, drafted, generator, validate=False))


def _on_host(result: Verification) -> Decision:
    num_accepted = int(result.num_accepted)
    return Decision(num_accepted, int(result.next_token), result.relaxed[:num_accepted].tolist())
