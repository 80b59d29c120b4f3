"""The playground's server: generating in every way, and handing out the trace."""

from __future__ import annotations

import pytest
from support.playground_server import asked, tokens

from cactus_decoding.lab.playground.server import PAGE
from cactus_decoding.lab.tracing import read_trace
from cactus_decoding.lab.tracing.page import PAGE as SHARED


def test_a_seed_that_was_drawn_is_told(server):
    first = server.events(asked(seed=None, max_new_tokens=20))
    again = server.events(asked(seed=first[0]["seed"], max_new_tokens=20))
    assert tokens(first) == tokens(again)


def test_a_budget_is_kept_and_told(server):
    events = server.events(asked("cactus:delta=1.0", "lossless", budget={"max_shift": 0.1}))
    assert [session["budget_nats"] for session in events[0]["sessions"]] == [pytest.approx(0.02), None]
    positions = [
        one for event in events if event.get("session") == 0 and event["event"] == "step" for one in event["positions"]
    ]
    assert sum(one["emitted_nats"] for one in positions) <= 0.02
    assert any(one["fell_back"] for one in positions)


@pytest.mark.parametrize("more", [{"draft": "ngram"}, {"num_speculative_tokens": "confidence:threshold=0.3"},
                                  {"temperature": 0}, {"verification": "block"}])  # fmt: skip
def test_other_ways_to_generate(server, pair, more):
    events = server.events(asked("lossless", max_new_tokens=24, **more))
    assert events[-1]["event"] == "finished"
    assert 1 <= len(tokens(events)) <= 24


def test_the_trace_can_be_taken_along(server, pair, tmp_path):
    events = server.events(asked("cactus:delta=1.0", seed=3))
    run = events[0]["run"]
    status, headers, body = server.ask("GET", f"/api/runs/{run}/0/trace.jsonl")
    assert status == 200
    assert headers["content-disposition"].startswith("attachment; filename=")
    (tmp_path / "trace.jsonl").write_bytes(body)
    trace = read_trace(tmp_path / "trace.jsonl")
    assert trace.token_ids == tokens(events)
    assert trace.header.request.seed == 3
    assert all(position.rows is not None for position in trace.positions if position.drafted_id is not None)
    status, headers, body = server.ask("GET", f"/api/runs/{run}/0/trace.html")
    assert status == 200
    assert headers["content-disposition"].endswith('.html"')
    assert b"CactusAnswer" in body
    assert server.ask("GET", f"/api/runs/{run}/1/trace.html")[0] == 422
    assert server.ask("GET", f"/api/runs/{run}/0/trace.exe")[0] == 404


def test_no_asset_hides_another_of_the_same_name() -> None:
    both = [path.name for folder in (PAGE, SHARED) for path in folder.iterdir()]
    assert len(both) == len(set(both))
