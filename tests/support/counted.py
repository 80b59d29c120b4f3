"""What Prometheus reads of counters, beside what outcomes say."""

from __future__ import annotations

from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from cactus_decoding import Metrics, Request
from cactus_decoding.core.counters import RuleCounters
from cactus_decoding.core.types import Outcome

CUTS = [{"max_tokens": 12}, {"max_tokens": 27}, {"max_tokens": 50, "stop": [" stam", "equ"]}]
"""Limits and stop strings of which some fall within a step."""


def counted(text: str) -> dict[str, dict[str, float]]:
    """Return the values of counters by rule and name."""
    values: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name.endswith("_total"):
                values.setdefault(sample.labels["rule"], {})[family.name] = sample.value
    return values


class Told:
    """What the outcomes of responses say, what is counted of them for Prometheus, and how often one was cut."""

    def __init__(self) -> None:
        self.metrics, self.counters, self.cut, self.matched = Metrics(), RuleCounters(CollectorRegistry()), 0, 0

    def __call__(self, request: Request, outcome: Outcome) -> None:
        self.metrics += Metrics.of(outcome)
        self.counters.add_step(request.rule, outcome)
        self.cut += outcome.num_emitted < len(outcome.all_token_ids)
        self.matched += sum(visit.matched is not None for visit in outcome.visits)

    def check(self, *reports: dict) -> None:
        """Compare the sums; all positions were judged by the rule."""
        (found,), metrics = counted(self.counters.text().decode()).values(), self.metrics
        positions = metrics.accepted + metrics.recovered
        assert found["cactus_verified_positions"] == positions
        assert found["cactus_accepted_tokens"] == metrics.accepted
        assert found["cactus_relaxed_tokens"] == metrics.relaxed
        for name, expected in {
            "steps": metrics.steps,
            "drafted_by_position": metrics.drafted,
            "accepted_by_position": metrics.accepted,
            "verified_positions": positions,
            "accepted_tokens": metrics.accepted,
            "relaxed_tokens": metrics.relaxed,
        }.items():
            given = [report[name] for report in reports]
            assert not reports or expected == sum(sum(each) if isinstance(each, list) else each for each in given), name
