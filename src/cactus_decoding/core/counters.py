"""What rules do, for Prometheus and for a response's report, read from outcomes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cactus_decoding.core.divergences.rows import kl_of_rows
from cactus_decoding.core.policy.position import Position
from cactus_decoding.core.relaxed_logits import lift_cost
from cactus_decoding.core.rules import Lossless
from cactus_decoding.core.rules.base import GreedyRule, LiftRule, verdict_on
from cactus_decoding.core.types import AcceptanceRule, Outcome, Visit

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

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
    "cactus_relaxed_tokens": "Accepted tokens that the lossless test rejects with the same uniform number",
    "cactus_conditional_nats": "KL of the relaxed target to the target, given the drafted token, over those positions",
    "cactus_audited_nats": "KL of what is emitted to the target, averaged over the drafted token, where it was audited",
    "cactus_audited_positions": "Positions that were audited",
    "cactus_protected_positions": "Drafted positions that a request's protection or phases kept from its rule",
    "cactus_fell_back_positions": "Drafted positions that were judged losslessly because of a response's budget",
}
# spellings that get a label of their own: requests choose them, and a label lasts as long as the server
MAX_RULES = 50
OTHER_RULES = "other"


class RuleCounters:
    """`COUNTERS` in a registry of Prometheus's client, that of the process by default; known ones are reused there.

    ``own`` is the server's own rule, which has a label whatever requests ask for.
    """

    def __init__(self, registry: CollectorRegistry | None = None, own: AcceptanceRule | None = None) -> None:
        from prometheus_client import REGISTRY, Counter

        self._registry = REGISTRY if registry is None else registry
        known: Any = self._registry._names_to_collectors
        self._counters: list[Counter] = [
            known.get(name) or Counter(name, text, ["rule"], registry=self._registry) for name, text in COUNTERS.items()
        ]
        self._labels = set() if own is None else {str(own)}

    def label_of(self, rule: AcceptanceRule) -> str:
        label = str(rule)
        if len(self._labels) < MAX_RULES:
            self._labels.add(label)
        return label if label in self._labels else OTHER_RULES

    def add(self, label: str, numbers: Sequence[float]) -> None:
        """Add numbers in the order of `COUNTERS`."""
        for counter, number in zip(self._counters, numbers, strict=True):
            counter.labels(label).inc(max(number, 0.0))  # nats may be below 0 by rounding

    def add_step(self, rule: AcceptanceRule, outcome: Outcome) -> None:
        """Count what a request's rule did in a step."""
        judged = _judged(outcome)
        audited = [] if isinstance(rule, GreedyRule) else [each.nats for each in judged if each.nats is not None]
        numbers = (
            len(judged),
            sum(visit.kept is not None for visit in judged),
            sum(visit.relaxed for visit in judged),
            sum(conditional_nats(visit) for visit in judged),
            sum(audited),
            len(audited),
            outcome.num_protected,
            outcome.num_fell_back,
        )
        self.add(self.label_of(rule), numbers)

    def text(self) -> bytes:
        """Return all that the registry counts, as Prometheus reads it."""
        from prometheus_client import generate_latest

        return generate_latest(self._registry)


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
