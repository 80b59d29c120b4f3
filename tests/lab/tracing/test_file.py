"""Trace files: nothing lost on the way, and every mistake named."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch
from support.tables import all_of
from support.tiny_pair import tiny_pair
from support.traces import PROMPT

from cactus_decoding import Fate, load_pair
from cactus_decoding.core.files.jsonl import read_as
from cactus_decoding.lab.tracing import read_trace, stream_trace, to_json, trace_response, what_if, write_trace, written
from cactus_decoding.lab.tracing.page import trace_to_html
from cactus_decoding.lab.tracing.trace import TracedPosition


@all_of("settings", [
    {"rule": "cactus:delta=0.5", "seed": 1},
    {"rule": "typical", "top_p": 0.9, "seed": 2},  # infinite scales
    {"rule": "relaxed_greedy:margin=1.0", "temperature": 0},
    {"rule": "clamped:width=1.0", "budget": math.inf, "verification": "block", "seed": 3},
    {"num_speculative_tokens": "confidence:threshold=0.1", "stop": ["é\n"], "seed": 4},
    {"num_speculative_tokens": 0, "seed": 5},
    {"tree": "static=3.2.1", "rule": "cactus:delta=0.5", "budget": math.inf, "seed": 6},
    {"tree": "static=2.2", "rule": "clamped:width=1", "verification": "joint", "seed": 7},
    {"tree": "static=3.1", "rule": "relaxed_greedy:margin=1.0", "temperature": 0},
])  # fmt: skip
def test_a_file_gives_back_the_trace_to_the_last_bit(tmp_path, settings):
    for pair in (tiny_pair(), load_pair()):
        made = trace_response(pair, PROMPT, max_new_tokens=20, **settings)
        write_trace(made, tmp_path / "t.jsonl")
        back = read_trace(tmp_path / "t.jsonl")
        assert back == made
        for mine, other in zip(made.positions, back.positions, strict=True):
            assert (mine.rows is None) == (other.rows is None) == (mine.fate is Fate.BONUS)
            if mine.rows is not None:
                seen, again = (what_if(one.rows, made.header.request.rule) for one in (mine, other))
                assert torch.equal(seen.emitted, again.emitted)
                assert seen.emitted_nats == again.emitted_nats
        write_trace(made, tmp_path / "t.jsonl", rows=False)
        assert all(position.rows is None for position in read_trace(tmp_path / "t.jsonl").positions)


def test_an_interrupted_response_leaves_a_readable_file_and_the_old_one(tmp_path, trace, saved):
    before = saved.read_bytes()
    lines = before.decode().splitlines()
    kinds = [json.loads(line, parse_constant=pytest.fail)["kind"] for line in lines]  # as a browser reads it
    assert kinds == ["trace", *["step"] * (len(lines) - 2), "end"]
    steps = stream_trace(load_pair(), PROMPT, seed=0)
    part = tmp_path / "trace.jsonl.cactus-part"

    growing = written(steps, saved)
    taken = (next(growing), next(growing))
    with pytest.raises(KeyboardInterrupt):
        growing.throw(KeyboardInterrupt)
    assert saved.read_bytes() == before
    back = read_trace(part)
    assert back.steps == taken == tuple(steps.steps)
    assert (back.finish_reason, back.text) == (None, steps.trace.text)
    assert back.metrics == replace(steps.response.metrics, seconds=back.metrics.seconds)
    with part.open("ab") as file:
        file.write(b'{"kind": "step", "positions": [')  # cut off in the middle of a line
    assert read_trace(part) == back
    assert "interrupted" in trace_to_html(back)


def test_nothing_is_left_of_what_never_began_and_the_file_alone_of_what_was_finished(tmp_path):
    response, path = stream_trace(load_pair(), PROMPT, seed=0, max_new_tokens=8), tmp_path / "t.jsonl"
    written(response, path).close()
    with pytest.raises(ValueError, match="cannot write"):
        next(written(response, tmp_path / "missing" / "t.jsonl"))
    assert list(tmp_path.iterdir()) == []
    steps = tuple(written(response, path))
    assert list(tmp_path.iterdir()) == [path]
    assert read_trace(path) == response.trace
    assert read_trace(path).steps == steps
    path.write_bytes(path.read_bytes()[:-1])  # without its last line end
    assert read_trace(path) == response.trace


def test_a_tree_that_is_none_is_named(tmp_path):
    path = tmp_path / "tree.jsonl"
    write_trace(trace_response(load_pair(), PROMPT, tree="static=2.1", seed=0), path)
    lines = path.read_text().splitlines()
    first, *others = json.loads(lines[1])["tree"]
    fates = "'accepted', 'relaxed', 'matched' or 'rejected'"
    for changed, message in (
        ([first, *others[:-1]], "line 2: the tree must have 4 nodes, but has 3"),
        ([first | {"parent": 0}, *others], "node 0: its parent must stand before it, but is 0"),
        ([first | {"fate": "lost"}, *others], rf"tree\[0\].fate must be {fates}, but is 'lost'"),
        ([first | {"drawn": 1}, *others], r"tree\[0\].drawn must be a valid boolean, but is '1'"),
        ("leaf", "tree must be a valid array"),
    ):
        path.write_text("\n".join([lines[0], altered(lines[1], tree=changed), *lines[2:]]) + "\n")
        with pytest.raises(ValueError, match=message):
            read_trace(path)


def altered(line, **changes):
    return json.dumps(json.loads(line) | changes)


def header(**changes):
    return lambda lines: [altered(lines[0], **changes)]


def step(**changes):
    return lambda lines: [lines[0], altered(lines[1], **changes)]


def position(**changes):
    def change(lines):
        step = json.loads(lines[1])
        step["positions"][0] |= changes
        return [lines[0], json.dumps(step)]

    return change


def row(role, **damage):
    def change(lines):
        step = json.loads(lines[1])
        step["positions"][0]["rows"][role] |= damage
        return [lines[0], json.dumps(step)]

    return change


DAMAGES = ({"values": "AAAA"}, {"values": "?"}, {"dtype": "int4"}, {"vocabulary": 7}, {"token_ids": "/////w=="},
           {"values": 3})  # fmt: skip


@all_of("change, message", [
    (lambda lines: [], "trace.jsonl: there is no trace in this file"),
    (lambda lines: ["{broken", *lines], "trace.jsonl, line 1: this is not JSON"),
    (lambda lines: ["[]", *lines], "line 1: there must be an object"),
    (lambda lines: lines[1:], "line 1: this is not a trace of cactus generate --trace"),
    (lambda lines: ['{"x": 1}'], "line 1: this is not a trace"),
    (header(schema=9), "line 1: schema is 9, but this version reads schema 1"),
    (header(seed="x"), "line 1: request: seed must be an integer, but is 'x'"),
    (header(top_p=None), "line 1: request: top_p must be a number, but is None"),
    (header(frob=1), "line 1: request: a request has no 'frob'"),
    (header(rule="frob"), "line 1: request: unknown rule 'frob'"),
    (header(vocabulary="x"), "line 1: vocabulary must be a valid integer, but is 'x'"),
    (lambda lines: [lines[0], lines[2]], "line 2: the steps and places do not follow each other"),
    (step(kind="other"), "line 2: the kind must be 'step' or 'end'"),
    (step(positions=3), "line 2: positions must be a valid array, but is '3'"),
    (step(positions=[3]), "line 2: positions[0] must be an object"),
    (position(fate="lost"), "positions[0].fate must be 'accepted', 'relaxed'"),
    (position(place=True), "positions[0].place must be a valid integer, but is 'True'"),
    (position(tv="much"), "positions[0].tv must be a valid number, but is 'much'"),
    (position(candidates=[{}]), "positions[0].candidates[0].token_id is missing"),
    (position(rows={"target": None}), "positions[0].rows.drafted_id is missing"),
    (lambda lines: [*lines, lines[-1]], "there must be nothing after the end of the trace"),
    (lambda lines: [lines[0], '{"kind": "end"}'], "line 2: text is missing"),
    *((row(role, **damage), f"line 2: positions[0].rows.{role}: the row is damaged")
      for role in ("target", "draft") for damage in DAMAGES),
])  # fmt: skip
def test_malformed_files_are_named(trace, tmp_path, change, message):
    path = tmp_path / "trace.jsonl"
    write_trace(trace, path)
    path.write_text("".join(line + "\n" for line in change(path.read_text().splitlines())))
    with pytest.raises(ValueError, match=r"trace\.jsonl") as caught:
        read_trace(path)
    assert message in str(caught.value)


def test_a_position_survives_json_with_its_infinities(trace):
    for position in trace.positions[:8]:
        infinite = replace(position, residual_scale=math.inf, max_log_ratio=-math.inf)
        text = json.dumps(to_json(infinite, rows=True), allow_nan=False)
        assert read_as(TracedPosition, json.loads(text), "here") == infinite
    assert to_json(replace(trace.positions[0], conditional_nats=math.nan))["conditional_nats"] is None
