"""Traced responses: the same tokens with and without, and what their header says."""

from __future__ import annotations

import pytest
from support.tables import all_of
from support.tiny_pair import tiny_pair
from support.traces import PROMPT, SETTINGS, with_each_draft

from cactus_decoding import Budget, Metrics, SamplingParams, stream
from cactus_decoding.lab.tracing import stream_trace, trace_response
from cactus_decoding.lab.tracing.positions import TokenNames


@all_of("name, draft", with_each_draft(SETTINGS))
def test_looking_on_changes_nothing(name, draft):
    settings = {"num_speculative_tokens": 4, "max_new_tokens": 24, "seed": 5} | SETTINGS[name]
    plain, pair = tiny_pair(draft), tiny_pair(draft)
    response, traced = stream(plain, PROMPT, **settings), stream_trace(pair, PROMPT, **settings)
    for step in response:
        seen = next(traced)
        assert (seen.token_ids, seen.fates) == (step.token_ids, step.fates)
        assert (seen.num_drafted, seen.num_accepted, seen.finish_reason) == (
            step.num_drafted, step.num_accepted, step.finish_reason)  # fmt: skip
        assert len(seen.positions) == step.num_accepted + 1
        counts, wanted = seen.metrics(), Metrics.of(step)
        counts.seconds = wanted.seconds
        assert counts == wanted
        if step.nats is not None:
            assert [position.emitted_nats for position in seen.positions[: len(step.nats)]] == step.nats
    with pytest.raises(StopIteration):
        next(traced)
    trace = traced.trace
    assert trace.text == response.text == "".join(position.text for position in trace.positions)
    assert trace.finish_reason == response.finish_reason
    assert [position.place for position in trace.positions] == list(range(len(trace.positions)))
    assert trace.positions[-1].budget_left == (
        None if response.budget_left is None else pytest.approx(response.budget_left, abs=1e-12)
    )
    assert traced.response.budget_left == response.budget_left


def test_seconds_leave_out_the_tracing_and_add_up(bundled):
    traced = stream_trace(bundled, PROMPT, seed=0)
    for step in traced:
        assert step.target_seconds is not None
        assert 0 < step.target_seconds + step.verify_seconds < step.seconds
    trace = traced.trace
    assert trace.metrics.seconds == pytest.approx(sum(step.seconds for step in trace.steps))
    assert traced.response.metrics.seconds == trace.metrics.seconds


def test_the_header_says_what_was_asked_for(bundled):
    budget = Budget(max_shift=0.2)
    settings = {"budget": budget, "top_p": 0.9, "stop": ["x"], "max_new_tokens": 5}
    trace = trace_response(bundled, PROMPT, rule="cactus:delta=0.50", **settings)
    header = trace.header
    request = header.request
    assert (str(request.rule), request.sampling, request.stop) == (
        "cactus:delta=0.5", SamplingParams(top_p=0.9, temperature=1.0), ("x",))  # fmt: skip
    assert (header.target, header.draft, header.vocabulary) == ("bundled", "bundled:worded", 1003)
    assert request.budget == budget
    assert header.provenance["arguments"]["seed"] == request.seed
    again = trace_response(bundled, PROMPT, rule="cactus:delta=0.5", seed=request.seed, **settings)
    assert again.token_ids == trace.token_ids
    named = trace_response(tiny_pair("ngram"), PROMPT, seed=0, max_new_tokens=2, target="mine").header
    assert (named.target, named.draft) == ("mine", "ngram")


def test_special_tokens_are_called_by_their_name(bundled):
    trace = trace_response(bundled, PROMPT, temperature=0)
    assert (trace.positions[-1].token, trace.positions[-1].text) == ("<eos>", "")


def test_every_token_has_a_name_of_its_own_kind(bundled):
    name = TokenNames(bundled.tokenizer)
    (word,) = bundled.tokenizer(" has", add_special_tokens=False).input_ids
    assert name(word) == " has"
    byte = next(i for i in range(256) if "\ufffd" in bundled.tokenizer.decode([i]))
    assert name(byte) == bundled.tokenizer.convert_ids_to_tokens(byte)
    assert name(10_000) == "#10000"  # logits are often padded
