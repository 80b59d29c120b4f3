"""Runs: the latest are kept, and their sessions are what they would be alone."""

from __future__ import annotations

import pytest
from support.playground_server import QUESTION, asked, tokens
from support.reads import reads

from cactus_decoding import stream
from cactus_decoding.lab.playground.form import FormLimits, read_request
from cactus_decoding.lab.playground.runs import Runs
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
    runs, request = Runs(2), read_request(asked(), FormLimits(), models=False)
    names = [runs.begin(pair, request).name for _ in range(3)]
    assert len(set(names)) == 3
    with pytest.raises(ValueError, match="no longer kept"):
        runs.get(names[0])
    assert [runs.get(name).name for name in names[1:]] == names[1:]


def test_a_visitor_s_next_run_reads_on_behind_the_last_one_and_nobody_else_s_does(pair):
    def begin(runs, question, after=None, on=pair):
        body = asked("cactus:delta=1.0", "lossless", seed=3, max_new_tokens=8, after=after)
        return runs.begin(on, read_request(body | {"prompt": question}, FormLimits(), models=False))

    def run(*given, **options):
        with reads() as found:
            new = begin(*given, **options)
            answers = [[step for step in iter(session.step, None)] for session in new.sessions]
        return new, max(count for _, count in found), [session.end()["text"] for session in new.sessions], answers

    runs, longer = Runs(4), f"{QUESTION} Why?"
    first, whole, _, _ = run(runs, QUESTION)
    stranger, as_whole, expected, _ = run(runs, longer)
    assert as_whole > whole
    for after in ("", "nonsense"):
        assert run(Runs(4), longer, after)[1] == as_whole
    _, rest, texts, _ = run(runs, longer, first.name)
    assert rest < whole / 2
    assert texts == expected
    assert run(runs, longer, first.name)[1] == as_whole  # whose caches another run has by now
    assert run(runs, longer, stranger.name, on=pair.twin())[1] == as_whole  # of another pair
    begun = begin(runs, QUESTION)
    begun.sessions[0].step()  # and its visitor leaves
    assert run(runs, longer, begun.name)[2] == expected
    assert begun.sessions[0].step() is None
    assert first.sessions[0].lines()


def test_an_unknown_run_is_not_found(server):
    assert server.post("/api/runs/nonsense/stop", {})[0] == 404
    assert server.post("/api/runs/nonsense/what-if", {"session": 0, "place": 0, "rules": ["lossless"]})[0] == 404
    assert server.ask("GET", "/api/runs/nonsense/0/trace.html")[0] == 404
