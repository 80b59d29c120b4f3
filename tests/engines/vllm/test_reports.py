"""The worker's part of reports where no engine here goes: on the V2 runner, and for outputs that are still copied."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from cactus_decoding.engines.openai.counters import REPORTED, report_of
from cactus_decoding.engines.vllm.reports import ATTRIBUTE, with_counts
from cactus_decoding.engines.vllm.request import ServerConfig
from cactus_decoding.engines.vllm.v2 import SlotRules


def runner(slots: int) -> tuple[SimpleNamespace, SlotRules]:
    """Return what a worker of the V2 runner has, with two requests of which one asks for a report."""
    prompts = SimpleNamespace(np=torch.zeros(slots, dtype=torch.int32).numpy())
    states = SimpleNamespace(device=torch.device("cpu"), max_num_reqs=slots, prompt_len=prompts, prefill_len=prompts)
    rules = SlotRules(ServerConfig(), states)
    for slot, more in ((2, {}), (1, {"acceptance_report": 1})):
        asked = {"acceptance_rule": "cactus:delta=1"} | more
        rules.add_request(slot, SimpleNamespace(temperature=1.0, extra_args=asked))
    states.req_id_to_index = {"silent": 2, "asking": 1, "waiting": 3}
    sampler = SimpleNamespace(logits_processors=[object(), rules])
    return SimpleNamespace(req_states=states, sampler=sampler), rules


@pytest.mark.parametrize("held", [None, "model_runner_output", "_model_runner_output"])
def test_a_worker_adds_counts_to_what_it_hands_on(held: str | None) -> None:
    model_runner, rules = runner(4)
    rules.meter.counts[rules.meter_slots[1]] = torch.arange(len(REPORTED)).double()
    inner = SimpleNamespace(req_ids=["waiting", "asking", "silent", "gone"])
    given = inner if held is None else SimpleNamespace(**{held: inner})
    worker = SimpleNamespace(model_runner=model_runner)
    output = with_counts(lambda worker, grammar: given)(worker, None)
    assert output is given
    assert getattr(inner, ATTRIBUTE) == {"asking": [0, 1, 2, 3, 4, 5]}


def test_nothing_is_added_where_nobody_asks_or_nothing_is_handed_on() -> None:
    model_runner, rules = runner(4)
    worker = SimpleNamespace(model_runner=model_runner)
    others = SimpleNamespace(req_ids=["silent"])
    assert not hasattr(with_counts(lambda *_: others)(worker), ATTRIBUTE)
    assert with_counts(lambda *_: None)(worker) is None
    rules.requests.clear()
    asking = SimpleNamespace(req_ids=["asking"])
    assert not hasattr(with_counts(lambda *_: asking)(worker), ATTRIBUTE)


def test_what_nobody_knows_is_none() -> None:
    report = report_of([float("nan")] * len(REPORTED), [3], [2])
    assert {report[name] for name in REPORTED} == {None}
    assert (report["drafted_by_position"], report["accepted_by_position"]) == ([3], [2])
    known = report_of([0.25, 4, 3, 1.5, 2, 1], [3], [2])
    assert {name: known[name] for name in REPORTED} == {
        "nats": 0.25, "verified_positions": 4, "accepted_tokens": 3, "relaxed_tokens": 1.5,
        "fell_back_positions": 2, "protected_positions": 1,
    }  # fmt: skip
