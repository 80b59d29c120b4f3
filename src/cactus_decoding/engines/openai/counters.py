"""What rules do, for Prometheus and for a response's report: counted on the device, or read from outcomes."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cactus_decoding.core.divergences.rows import kl_of_rows
from cactus_decoding.core.policy.position import Position
from cactus_decoding.core.relaxed_logits import PositionCosts, lift_cost
from cactus_decoding.core.request import Request
from cactus_decoding.core.rules import Lossless, Rule
from cactus_decoding.core.rules.base import GreedyRule, LiftRule, verdict_on
from cactus_decoding.core.types import Outcome, Visit

REPORT_KEY = "acceptance_report"  # asks for a report in a request, and names it in a response
# counted for a response that asks for it: nats as a budget charges them, and the rest as in `COUNTERS`
REPORTED = (
    "nats", "verified_positions", "accepted_tokens", "relaxed_tokens", "fell_back_positions", "protected_positions"
)  # fmt: skip


def report_of(
    counts: Sequence[float] | None, drafted: Sequence[int], accepted: Sequence[int], steps: int | None = None
) -> dict[str, Any]:
    """Return what a response says of its own acceptance; unknown numbers are None.

    Counts are in the order of `REPORTED`, None for a request without a rule; the next two are by position. ``steps``,
    verifications, are left out where nobody counts them.
    """
    given = [0.0] * len(REPORTED) if counts is None else counts
    known = [number if math.isfinite(number) else None for number in given]
    integral = ("verified_positions", "accepted_tokens", "fell_back_positions", "protected_positions")
    report: dict[str, Any] = {
        name: int(number) if name in integral and number is not None else number
        for name, number in zip(REPORTED, known, strict=True)
    }
    by_position = {"drafted_by_position": list(drafted), "accepted_by_position": list(accepted)}
    return report | ({} if steps is None else {"steps": steps}) | by_position


# counted by rule
COUNTERS = {
    "cactus_verified_positions": "Drafted positions that were looked at under a rule",
    "cactus_accepted_tokens": "Drafted tokens accepted under a rule",
    "cactus_relaxed_tokens": "Accepted tokens that the lossless test rejects with the same uniform number (expected)",
    "cactus_conditional_nats": "KL of the relaxed target to the target, given the drafted token, over those positions",
    "cactus_audited_nats": "KL of what is emitted to the target, averaged over the drafted token, where it was audited",
    "cactus_audited_positions": "Positions that were audited",
    "cactus_protected_positions": "Drafted positions that a request's protection or phases kept from its rule",
    "cactus_fell_back_positions": "Drafted positions that were judged losslessly because of a response's budget",
}
# spellings that get a label of their own: requests choose them, and a label lasts as long as the server
MAX_RULES = 50
OTHER = "other"
_GOLDEN_RATIO = (math.sqrt(5) - 1) / 2


class Counters:
    """Sums by rule on the device; every so often they are read and added to Prometheus's counters.

    ``own`` is the server's own rule, which has a label whatever requests ask for.
    """

    def __init__(
        self, audit_fraction: float, device: torch.device, seconds: float = 1.0, own: Rule | None = None
    ) -> None:
        # the audited part of positions, in [0, 1], is spread evenly and not drawn; ``seconds`` pass between readings
        self._fraction, self._offered = audit_fraction, 0
        self._device, self._seconds, self._last = device, seconds, time.monotonic()
        self._sums: dict[str, Tensor] = {}
        self._labels = set() if own is None else {str(own)}
        self._prometheus: list[Any] | None = None

    def sample(self, positions: int) -> Tensor | None:
        if not self._fraction:
            return None
        # multiples of the golden ratio: every so many-th position would always be the same place within a step
        parts = np.arange(self._offered + 1, self._offered + positions + 1) * _GOLDEN_RATIO % 1
        self._offered += positions
        chosen = torch.from_numpy(np.flatnonzero(parts < self._fraction))
        if not len(chosen):
            return None
        if self._device.type == "cuda":
            chosen = chosen.pin_memory()  # so that nothing waits for the device
        return chosen.to(self._device, non_blocking=True)

    def add(
        self,
        rule: Rule,
        costs: PositionCosts,
        left: Tensor,
        sample: Tensor | None,
        protected: Tensor | None = None,
        fell_back: Tensor | None = None,
    ) -> None:
        """Count what one rule did in a step.

        ``left`` is positive at accepted positions, 0 at a rejected one that was looked at, negative at all others;
        ``protected`` and ``fell_back`` mark those looked at that a policy or a budget kept the rule away from.
        """
        visited, accepted = left >= 0, left > 0
        numbers = [
            visited.sum().double(),
            accepted.sum().double(),
            torch.where(accepted, costs.relaxed, 0.0).sum(),
            torch.where(visited, costs.conditional, 0.0).sum(),
        ]
        if sample is None:
            numbers += [numbers[0].new_zeros(())] * 2
        else:
            emitted = costs.emitted[sample]
            audited = visited[sample] & emitted.isfinite()
            numbers += [torch.where(audited, emitted, 0.0).sum(), audited.sum().double()]
        numbers += [
            numbers[0].new_zeros(()) if kept is None else kept.sum().double() for kept in (protected, fell_back)
        ]
        label, step = str(rule), torch.stack(numbers)
        if len(self._labels) < MAX_RULES:
            self._labels.add(label)
        label = label if label in self._labels else OTHER
        sums = self._sums.get(label)
        self._sums[label] = step if sums is None else sums + step
        if time.monotonic() - self._last >= self._seconds:
            self.flush()

    def flush(self) -> None:
        """Read the sums, which waits for the device, and add them to Prometheus's counters."""
        self._last = time.monotonic()
        if self._prometheus is None:
            self._prometheus = _prometheus_counters()
        for label, sums in self._sums.items():
            for counter, value in zip(self._prometheus, sums.tolist(), strict=True):
                counter.labels(label).inc(value)
        self._sums.clear()


def _prometheus_counters() -> list[Any]:
    """Return the counters; those that are registered already are reused."""
    from prometheus_client import REGISTRY, Counter

    known = REGISTRY._names_to_collectors
    return [known.get(name) or Counter(name, text, ["rule"]) for name, text in COUNTERS.items()]


class BudgetMeter:
    """What responses have spent and what became of their positions, on the device, so that no step waits for a number.

    A response keeps its slot when the engine takes it out of the batch for a while, as long as the engine passes the
    same object for it. One that comes back unknown counts as having spent everything, so that the budget holds. Its
    counts are then NaN.
    """

    def __init__(self, device: torch.device, slots: int) -> None:
        # nats of responses with a budget, ``[slots]``, and what those that ask for a report count, by `REPORTED`
        self.spent = torch.zeros(slots, dtype=torch.float64, device=device)
        self.counts = torch.zeros(slots, len(REPORTED), dtype=torch.float64, device=device)
        self._slots: OrderedDict[int, tuple[Any, int]] = OrderedDict()  # by identity, which holding the object secures

    def slot_of(self, response: Any, begun: bool, in_use: Callable[[], Collection[int | None]]) -> int:
        if (known := self._slots.get(id(response))) is not None:
            self._slots.move_to_end(id(response))
            return known[1]
        slot = len(self._slots)
        if slot == len(self.spent):
            kept = in_use()
            oldest = next(key for key, (_, taken) in self._slots.items() if taken not in kept)
            slot = self._slots.pop(oldest)[1]
        self._slots[id(response)] = response, slot
        self.spent[slot], self.counts[slot] = (math.inf, math.nan) if begun else (0.0, 0.0)
        return slot

    def charge(self, slots: Tensor, costs: Tensor, visited: Tensor) -> None:
        """Add what a step spent, position after position as `afforded` does, so that both round the same."""
        for cost in torch.where(visited, costs, 0.0).unbind(1):
            self.spent.index_add_(0, slots, cost)


TEXTS = COUNTERS | {"cactus_relaxed_tokens": "Accepted tokens that the lossless test rejects with the same number"}


class RuleCounters:
    def __init__(self) -> None:
        self._sums: dict[str, list[float]] = {}

    def add(self, request: Request, outcome: Outcome) -> None:
        judged = _judged(outcome)
        audited = (
            [] if isinstance(request.rule, GreedyRule) else [each.nats for each in judged if each.nats is not None]
        )
        step = [
            len(judged),
            sum(visit.kept is not None for visit in judged),
            sum(visit.relaxed for visit in judged),
            sum(conditional_nats(visit) for visit in judged),
            sum(audited),
            len(audited),
            outcome.num_protected,
            outcome.num_fell_back,
        ]
        label = str(request.rule)
        if label not in self._sums and len(self._sums) >= MAX_RULES:
            label = OTHER  # requests choose labels, and each lasts as long as the server
        before = self._sums.get(label, [0] * len(step))
        self._sums[label] = [old + new for old, new in zip(before, step, strict=True)]

    def text(self) -> str:
        lines, rules = list[str](), list(self._sums.items())
        for place, (name, meaning) in enumerate(TEXTS.items()):
            lines += [f"# HELP {name}_total {meaning}", f"# TYPE {name}_total counter"]
            lines += [f'{name}_total{{rule="{rule}"}} {float(sums[place])}' for rule, sums in rules]
        return "\n".join(lines) + "\n"


def _judged(outcome: Outcome) -> list[Visit]:
    """Return the positions that the request's rule judged; where a token is forced, there is nothing to judge."""
    free = [each for each in outcome.visits if outcome.proposal.forced.isdisjoint({each.node, each.kept})]
    return [each for each in free if not (each.protected or each.fell_back)]


class ResponseCounts:
    def __init__(self) -> None:
        self._counts = [0.0] * len(REPORTED)
        self._drafted, self._accepted = list[int](), list[int]()  # of each step

    def add(self, outcome: Outcome) -> None:
        judged = _judged(outcome)
        unmeasured = any(visit.nats is None and not isinstance(visit.rule, Lossless) for visit in judged)
        step = (
            math.nan if unmeasured else sum(outcome.nats),  # without a budget nobody measures
            len(judged),
            sum(visit.kept is not None for visit in judged),
            sum(visit.relaxed for visit in judged),
            outcome.num_fell_back,
            outcome.num_protected,
        )
        self._counts = [old + new for old, new in zip(self._counts, step, strict=True)]
        self._drafted.append(outcome.num_drafted)
        self._accepted.append(outcome.num_accepted)

    def report(self) -> dict[str, Any]:
        places = range(max(self._drafted, default=0))
        counted = self._drafted, self._accepted
        drafted, accepted = ([sum(number > place for number in each) for place in places] for each in counted)
        return report_of(self._counts, drafted, accepted, len(self._drafted))


def conditional_nats(visit: Visit) -> float:
    """Return KL(h || q) for the h of the drafted token."""
    rule = visit.rule
    if isinstance(rule, Lossless):
        return 0.0
    position = Position(visit.rows, visit.rows.proposal.parents[visit.node])
    h = position.relaxed_target(rule)
    if h is not None:
        return kl_of_rows(h, position.target.probs).item()
    if not isinstance(rule, LiftRule):
        return 0.0
    target_prob = visit.target_probs[visit.token_id].double()
    return float(lift_cost(target_prob, verdict_on(visit).relaxed_prob[0].clamp(max=1.0)))
