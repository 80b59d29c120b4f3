"""Runs: the latest are kept, and their sessions are what they would be alone."""

from __future__ import annotations

import pytest
from support.playground_server import QUESTION, asked, tokens

from cactus_decoding import stream
from cactus_decoding.playground.form import Limits, read_request
from cactus_decoding.playground.runs import Runs
from cactus_decoding.zoo.word_problems import format_prompt

PROMPT = format_prompt(QUESTION)


def test_both_sessions_are_what_they_would_be_alone(server, pair):
    rules = ["cactus:delta=1.0", "lossless"]
    events = server.events(asked(*rules, top_p=0.9, seed=5))
    assert events[0]["event"] == "started"
    assert [session["rule"] for session in events[0]["sessions"]] == rules
    assert events[-1] == {"event": "finished"}
    for session, spelling in enumerate(rules):
        alone = stream(pair, PROMPT, rule=spelling, top_p=0.9, seed=5)
        steps = list(alone)
        assert tokens(events, session) == alone.token_ids
        (end,) = [event for event in events if event["event"] == "ended" and event["session"] == session]
        assert (end["text"], end["finish_reason"]) == (alone.text, "stop")
        assert end["metrics"]["steps"] == len(steps)
        assert end["metrics"]["relaxed"] == alone.metrics.relaxed
    order = [event["session"] for event in events if event["event"] == "step"]
    assert order[:6] == [0, 1, 0, 1, 0, 1]  # they take turns


def test_the_oldest_run_is_forgotten(pair):
    runs, request = Runs(2), read_request(asked(), Limits(), models=False)
    names = [runs.begin(pair, request).name for _ in range(3)]
    assert len(set(names)) == 3
    with pytest.raises(ValueError, match="no longer kept"):
        runs.get(names[0])
    assert [runs.get(name).name for name in names[1:]] == names[1:]


def test_an_unknown_run_is_not_found(server):
    assert server.post("/api/runs/nonsense/stop", {})[0] == 404
    assert server.post("/api/runs/nonsense/what-if", {"session": 0, "place": 0, "rules": ["lossless"]})[0] == 404
    assert server.ask("GET", "/api/runs/nonsense/0/trace.html")[0] == 404
