"""What is counted for Prometheus, by rule."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from cactus_decoding import parse_rule
from cactus_decoding.engines.openai import counters
from cactus_decoding.engines.openai.counters import COUNTERS, MAX_RULES, OTHER, Counters
from cactus_decoding.engines.openai.relaxed_logits import costs_of, relax_tokens


class Recorder:
    """Stands for a Prometheus counter."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}

    def labels(self, rule: str) -> SimpleNamespace:
        def inc(value: float) -> None:
            self.values[rule] = self.values.get(rule, 0.0) + value

        return SimpleNamespace(inc=inc)


def test_what_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    recorders = [Recorder() for _ in COUNTERS]
    monkeypatch.setattr(counters, "_prometheus_counters", lambda: recorders)
    counting = Counters(0.5, torch.device("cpu"), seconds=1e9)
    rule, target = parse_rule("cactus:delta=1"), torch.tensor([[0.5, 0.5]] * 4).double()
    indices = [counting.sample(4), counting.sample(3)]
    assert [part.tolist() for part in indices] == [[1, 3], [0, 2]]
    many = [counting.sample(4) for _ in range(1000)]
    assert [sum(place in part for part in many) for place in range(4)] == pytest.approx([500] * 4, abs=10)
    costs = costs_of(relax_tokens(rule, target.log()[:, 0], target.log().logsumexp(-1)), None, None)
    left = torch.tensor([2, 1, 0, -1])  # two accepted, one rejected, one not looked at
    kept = torch.tensor([True, True, False, False]), torch.tensor([False, False, True, False])
    counting.add(rule, costs, left, indices[0], *kept)
    counting.flush()
    counted = {name: one.values[str(rule)] for name, one in zip(COUNTERS, recorders, strict=True)}
    assert counted["cactus_verified_positions"] == 3
    assert counted["cactus_accepted_tokens"] == 2
    assert counted["cactus_relaxed_tokens"] == pytest.approx(2 * 0.5)  # g is 1, lossless accepts half of the time
    assert counted["cactus_conditional_nats"] == pytest.approx(3 * torch.log(torch.tensor(2.0)).item())
    assert counted["cactus_audited_positions"] == 1
    assert (counted["cactus_protected_positions"], counted["cactus_fell_back_positions"]) == (2, 1)
    for number in range(2 * MAX_RULES):
        counting.add(parse_rule(f"cactus:delta={number + 2}"), costs, left, None)
    counting.flush()
    assert len(recorders[0].values) == MAX_RULES + 1
    assert recorders[0].values[OTHER] > 0


def test_requests_cannot_take_the_label_of_the_server_s_own_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    recorders = [Recorder() for _ in COUNTERS]
    monkeypatch.setattr(counters, "_prometheus_counters", lambda: recorders)
    own = parse_rule("clamped:width=1")
    counting = Counters(0.0, torch.device("cpu"), seconds=1e9, own=own)
    costs = costs_of(relax_tokens(own, torch.tensor([0.0]), torch.tensor([2.0]).log()), None, None)
    for rule in (*(parse_rule(f"cactus:delta={number + 2}") for number in range(2 * MAX_RULES)), own):
        counting.add(rule, costs, torch.tensor([1]), None)
    counting.flush()
    assert recorders[0].values[str(own)] == 1
    assert recorders[0].values[OTHER] == MAX_RULES + 1
    assert len(recorders[0].values) == MAX_RULES + 1


def test_sums_are_handed_on_every_so_often(monkeypatch: pytest.MonkeyPatch) -> None:
    recorders = [Recorder() for _ in COUNTERS]
    monkeypatch.setattr(counters, "_prometheus_counters", lambda: recorders)
    rule = parse_rule("cactus:delta=1")
    costs = costs_of(relax_tokens(rule, torch.tensor([0.0]), torch.tensor([2.0]).log()), None, None)
    for seconds, handed_on in ((1e9, {}), (0.0, {str(rule): 1.0})):
        Counters(0.0, torch.device("cpu"), seconds).add(rule, costs, torch.tensor([1]), None)
        assert recorders[0].values == handed_on
