"""Counts add up, and ratios are worked out from sums, not averaged."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cactus_decoding.core.metrics import Metrics

counts = st.integers(0, 10**12)
metrics = st.builds(
    Metrics,
    steps=counts,
    drafted=counts,
    accepted=counts,
    relaxed=counts,
    recovered=counts,
    bonus=counts,
    generated=counts,
    seconds=counts.map(float),
)


@given(metrics, metrics, metrics)
def test_adding_up(a: Metrics, b: Metrics, c: Metrics) -> None:
    assert a + Metrics() == a
    assert a + b == b + a
    assert (a + b) + c == a + (b + c)
    assert (a + b).accepted == a.accepted + b.accepted
    assert (a + b).seconds == a.seconds + b.seconds


def test_ratios() -> None:
    run = Metrics(steps=4, drafted=16, accepted=10, relaxed=2, recovered=3, bonus=1, generated=14, seconds=2.0)
    assert run.acceptance_length == 3.5
    assert run.accepted_per_step == 2.5
    assert run.acceptance_rate == 0.625
    assert run.tokens_per_second == 7.0


def test_ratio_of_two_runs_is_that_of_their_sums() -> None:
    # the mean of the two ratios would be 0.55
    both = Metrics(steps=1, drafted=1, accepted=1) + Metrics(steps=9, drafted=90, accepted=9)
    assert both.acceptance_rate == pytest.approx(10 / 91)
    assert both.accepted_per_step == 1.0


def test_empty_run_has_no_ratios() -> None:
    assert math.isnan(Metrics().acceptance_length)
    assert math.isnan(Metrics().acceptance_rate)
    described = Metrics().as_dict()
    assert described["acceptance_length"] is described["tokens_per_second"] is None
    assert described["steps"] == 0


@given(metrics)
def test_description_is_strict_json_and_keeps_the_counts(run: Metrics) -> None:
    again = json.loads(json.dumps(run.as_dict(), allow_nan=False))
    assert {name: again[name] for name in vars(run)} == vars(run)
    assert again.keys() - vars(run).keys() == {
        "acceptance_length",
        "accepted_per_step",
        "acceptance_rate",
        "nats_per_position",
        "tokens_per_second",
    }
