"""What rules do, for Prometheus: the counters of vLLM's adapter, read from outcomes."""

from __future__ import annotations

import math
from typing import Any

from cactus_decoding.core.divergences.rows import kl_of_rows
from cactus_decoding.core.request import Request
from cactus_decoding.core.rules import Lossless, Rule
from cactus_decoding.core.types import Outcome, Visit, judges_untempered
from cactus_decoding.engines.openai.counters import COUNTERS, MAX_RULES, OTHER, REPORTED, report_of
from cactus_decoding.engines.openai.relaxed_logits import lift_cost

TEXTS = COUNTERS | {"cactus_relaxed_tokens": "Accepted tokens that the lossless test rejects with the same number"}


class RuleCounters:
    """Sums by rule."""

    def __init__(self) -> None:
        self._sums: dict[str, list[float]] = {}

    def add(self, request: Request, outcome: Outcome) -> None:
        judged = _judged(outcome)
        audited = [] if judges_untempered(request.rule) else [each.nats for each in judged if each.nats is not None]
        step = [
            len(judged),
            sum(visit.accepted for visit in judged),
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
    forced = outcome.proposal.forced
    return [each for each in outcome.visits if not (each.protected or each.fell_back or each.node in forced)]


class ResponseCounts:
    def __init__(self) -> None:
        self._counts, self._drafted, self._accepted = [0.0] * len(REPORTED), list[int](), list[int]()
        self._steps = 0

    def add(self, outcome: Outcome) -> None:
        judged = _judged(outcome)
        unmeasured = any(visit.nats is None and not isinstance(visit.rule, Lossless) for visit in judged)
        self._steps += 1
        step = (
            math.nan if unmeasured else sum(outcome.nats),  # without a budget nobody measures
            len(judged),
            sum(visit.accepted for visit in judged),
            sum(visit.relaxed for visit in judged),
            outcome.num_fell_back,
            outcome.num_protected,
        )
        self._counts = [old + new for old, new in zip(self._counts, step, strict=True)]
        for counts, number in ((self._drafted, outcome.num_drafted), (self._accepted, outcome.num_accepted)):
            counts += [0] * (number - len(counts))
            for place in range(number):
                counts[place] += 1

    def report(self) -> dict[str, Any]:
        missing = [0] * (len(self._drafted) - len(self._accepted))
        return report_of(self._counts, self._drafted, self._accepted + missing, self._steps)


def conditional_nats(visit: Visit) -> float:
    """Return KL(h || q) for the h of the drafted token."""
    rule = visit.rule
    if isinstance(rule, Lossless) or judges_untempered(rule) or not isinstance(rule, Rule):
        return 0.0
    target, token = visit.target_probs.double(), visit.token_id
    if rule.lifts_one_token or (visit.draft_probs is None and rule.recovers_from_relaxed_target):
        return float(lift_cost(target[token], visit.verdict.relaxed_prob[0].clamp(max=1.0)))
    if visit.draft_probs is None:
        return 0.0
    h = rule.relaxed_target(target, visit.draft_probs)
    return 0.0 if h is None else float(kl_of_rows(h, target))
