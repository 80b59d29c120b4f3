"""Budgets that cannot be overspent: how far a response's distribution may move, and the meter that keeps to it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from cactus_decoding.arguments.knobs import Knob, check_knobs
from cactus_decoding.auditing import audit
from cactus_decoding.rules.base import probability_of
from cactus_decoding.types import AcceptanceRule, Verdict


@dataclass(frozen=True)
class Budget:
    r"""How far the distribution of a whole response may move from the target's.

    A response that is decoded with a budget of B nats has KL(law of the response || the target's law) <= B, whatever
    the rule, the draft and the prompt. So no event (a right answer, a refusal, a broken format) has its probability
    moved by more than

    .. math:: \min(\sqrt{B / 2},\ \sqrt{1 - e^{-B}})

    which are the bounds of Pinsker and of Bretagnolle and Huber. ``max_shift`` states that consequence instead of the
    cause. The meter charges each verified position with its exact cost and falls back to the lossless rule, which costs
    nothing, wherever the next position would overspend. Proofs are in the documentation on guarantees.

    Attributes:
        nats: the budget per response, 0 or more; infinity only measures. Give either this or ``max_shift``.
        max_shift: largest change of any event's probability, in [0, 1].
        expected_tokens: if given, the length over which the budget is spread, 1 or more: the clamped ratio's width is
            then moved so that the budget lasts. Only for rules ``clamped:width=...``, whose width is the first one.

    Raises:
        TypeError: for a value that is no number.
        ValueError: if both or neither of ``nats`` and ``max_shift`` are given, or one is out of range.

    Sources: design of this project; Bretagnolle and Huber (1979) for the second bound.

    Example:
        >>> Budget(max_shift=0.1).limit
        0.020000000000000004
        >>> round(Budget(nats=0.02).shift, 12)
        0.1
    """

    nats: Annotated[float | None, Knob("the budget per response", "nats", ge=0)] = None
    max_shift: Annotated[float | None, Knob("largest change of any event's probability", ge=0, le=1)] = None
    expected_tokens: Annotated[
        int | None,
        Knob(
            "the length over which the budget is spread, by moving the width; only for ``clamped:width``",
            "tokens",
            ge=1,
        ),
    ] = None

    def __post_init__(self) -> None:
        """Check the parameters."""
        if (self.nats is None) == (self.max_shift is None):
            raise ValueError(
                f"give either nats or max_shift, but nats is {self.nats} and max_shift is {self.max_shift}"
            )
        check_knobs(self)
        if self.expected_tokens is not None and math.isinf(self.limit):
            raise ValueError("expected_tokens spreads a finite budget, but the budget is infinite")

    @property
    def limit(self) -> float:
        """The budget in nats: for ``max_shift`` s the larger of 2 s^2 and -log(1 - s^2), as either bound suffices."""
        if self.nats is not None:
            return float(self.nats)
        assert self.max_shift is not None
        square = float(self.max_shift) ** 2
        return max(2 * square, -math.log1p(-square) if square < 1 else math.inf)

    @property
    def shift(self) -> float:
        """Largest change of any event's probability that the budget allows, in [0, 1]."""
        return min(math.sqrt(self.limit / 2), math.sqrt(-math.expm1(-self.limit)))


def as_budget(budget: Budget | float | None) -> Budget | None:
    """Return a budget from itself or from its nats.

    Example:
        >>> as_budget(0.5)
        Budget(nats=0.5, max_shift=None, expected_tokens=None)
    """
    if budget is None or isinstance(budget, Budget):
        return budget
    if isinstance(budget, bool) or not isinstance(budget, (int, float)):
        raise TypeError(f"budget must be a Budget or a number of nats, but is {budget!r}")
    return Budget(nats=budget)


@dataclass(frozen=True)
class Plan:
    """How one step is to be judged.

    Attributes:
        rule: judges the step's positions: the metered rule where it was admitted, the lossless rule elsewhere.
        costs: what the metered rule would cost at each position, in nats.
        fell_back: the positions where that could not be afforded, which therefore cost nothing.
    """

    rule: AcceptanceRule
    costs: list[float]
    fell_back: list[bool]


def plan_step(
    rule: AcceptanceRule,
    target_probs: Tensor,
    draft_probs: Tensor | None,
    draft_token_ids: Tensor,
    *,
    limit: float,
    spent: float = 0.0,
) -> Plan:
    """Admit a step's positions one after another while the budget lasts.

    A position is admitted if what was spent, the positions admitted before it, and its own cost are within the limit.
    That depends only on the tokens before it, as the proof needs.

    Args:
        rule: the rule that spends.
        target_probs: the target's rows at the drafted positions, ``[k, vocabulary]``.
        draft_probs: the draft's rows likewise, or None for a deterministic draft.
        draft_token_ids: drafted tokens, ``[k]``.
        limit: the budget in nats.
        spent: nats that earlier steps have cost.

    Example:
        >>> q, p = torch.tensor([[0.5, 0.5]]), torch.tensor([[0.9, 0.1]])
        >>> from cactus_decoding import ClampedRatio
        >>> plan_step(ClampedRatio(width=1.0), q, p, torch.tensor([0]), limit=0.01).fell_back
        [True]
    """
    if draft_probs is None:  # a deterministic draft is a random one that puts all its mass on one token
        draft_probs = one_hot(draft_token_ids.long(), target_probs.shape[-1]).double()
    relaxed = rule.relaxed_target(target_probs, draft_probs)
    costs = audit(rule, target_probs, draft_probs).kl if relaxed is None else kl_of_rows(relaxed, target_probs)
    nats: list[float] = costs.clamp(min=0).tolist()  # rounding can take a KL of zero below zero
    admitted = admit(nats, limit, spent)
    where = torch.tensor(admitted, dtype=torch.bool, device=target_probs.device).unsqueeze(-1)
    judge: AcceptanceRule
    if relaxed is not None:
        judge = EmittedRows(torch.where(where, relaxed, target_probs.double()))
    else:
        judge = rule if all(admitted) else WhereAdmitted(rule, where)
    return Plan(judge, nats, [not fits for fits in admitted])


def admit(costs: Sequence[float], limit: float, spent: float = 0.0) -> list[bool]:
    """Say which of some positions, taken in order, can be afforded; one that cannot is passed over, and costs nothing.

    Example:
        >>> admit([0.5, 0.75, 0.25], limit=1.0)
        [True, False, True]
    """
    admitted = []
    for cost in costs:
        admitted.append(spent + cost <= limit)
        spent += cost if admitted[-1] else 0.0
    return admitted


def kl_of_rows(rows: Tensor, target_probs: Tensor) -> Tensor:
    """Return KL(row || target row) in nats, ``[...]`` in float64; infinite where a row has what the target excludes."""
    h, q = rows.double(), target_probs.double()
    return torch.where(h > 0, h * (h.log() - q.log()), 0.0).sum(-1)


@dataclass(frozen=True, eq=False)
class EmittedRows:
    """The rule that emits given rows h: accept n with h(n), recover from (h - p)+.

    Attributes:
        rows: h at each position, ``[..., vocabulary]`` in float64.
    """

    rows: Tensor

    def judge(self, target_probs: Tensor, draft_probs: Tensor | None, token_ids: Tensor) -> Verdict:
        """Return h(n) and 1: recovery starts from h itself."""
        relaxed_prob = probability_of(self.rows.expand_as(target_probs), token_ids)
        return Verdict(relaxed_prob, torch.ones_like(relaxed_prob))

    def recovery_target(self, target_probs: Tensor) -> Tensor:
        """Recover from h."""
        return self.rows.expand_as(target_probs)

    def relaxed_target(self, target_probs: Tensor, draft_probs: Tensor) -> Tensor:
        """Return h."""
        return self.rows.expand_as(target_probs)


@dataclass(frozen=True, eq=False)
class WhereAdmitted:
    """A rule at the positions that were admitted, and the lossless rule at the others.

    Attributes:
        rule: the rule.
        admitted: which positions it judges, ``[k, 1]``.
    """

    rule: AcceptanceRule
    admitted: Tensor

    def __str__(self) -> str:
        """The rule's own."""
        return str(self.rule)

    def judge(self, target_probs: Tensor, draft_probs: Tensor | None, token_ids: Tensor) -> Verdict:
        """Return the rule's two numbers, or q(n) and 1."""
        relaxed_prob, scale = self.rule.judge(target_probs, draft_probs, token_ids)
        lossless = probability_of(target_probs, token_ids)
        return Verdict(torch.where(self.admitted, relaxed_prob, lossless), torch.where(self.admitted, scale, 1.0))

    def recovery_target(self, target_probs: Tensor) -> Tensor:
        """Return the rows that the rule recovers from, or the target's own."""
        return torch.where(self.admitted, self.rule.recovery_target(target_probs), target_probs)

    def relaxed_target(self, target_probs: Tensor, draft_probs: Tensor) -> None:
        """Say that h depends on the drafted token: otherwise `EmittedRows` serves."""
        return None


class Meter:
    """Adds up what a response has cost.

    Attributes:
        limit: the budget in nats.
        spent: nats so far; never above the limit.
    """

    def __init__(self, limit: float) -> None:
        """Begin a response."""
        self.limit, self.spent = limit, 0.0

    def charge(
        self, costs: Sequence[float], fell_back: Sequence[bool], num_accepted: int
    ) -> tuple[list[float], list[bool]]:
        """Charge the positions that a step visited, and return what each of them cost and whether it fell back.

        Those are the accepted positions and the one of the first rejection. The bonus token costs nothing.

        Example:
            >>> Meter(limit=1.0).charge([0.1, 0.2, 0.3], [False, True, False], num_accepted=1)
            ([0.1, 0.0], [False, True])
        """
        visited = num_accepted + 1
        nats = [0.0 if over else cost for cost, over in zip(costs[:visited], fell_back[:visited], strict=True)]
        for cost in nats:  # one by one, as they were admitted: the same rounding
            self.spent += cost
        return nats, list(fell_back[:visited])
