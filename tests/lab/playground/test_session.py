"""One rule's answer: what another rule would have done at its positions."""

from __future__ import annotations

import gc

import pytest
from support.playground_server import QUESTION, asked

from cactus_decoding import Request
from cactus_decoding.lab.playground.runs import PlaygroundSession
from cactus_decoding.lab.tracing import PositionRows, stream_trace, to_json, what_if
from cactus_decoding.zoo.word_problems import format_prompt

PROMPT = format_prompt(QUESTION)


def test_what_if_is_exact(server, pair):
    events = server.events(asked("cactus:delta=0.5", top_p=0.95, seed=2))
    run = events[0]["run"]
    response = stream_trace(pair.twin(), PROMPT, rule="cactus:delta=0.5", top_p=0.95, seed=2, keep_rows=True)
    positions = [position for step in response for position in step.positions if position.rows is not None]
    asked_about = ["cactus:delta=0.5", "cactus:delta=3.0,solver=exact", "clamped:width=0.7", "lossless", "top_k:k=3"]
    for position in positions[:12]:
        status, answer = server.post(
            f"/api/runs/{run}/what-if", {"session": 0, "place": position.place, "rules": asked_about}
        )
        assert status == 200
        assert [one["rule"] for one in answer["rules"]] == asked_about
        for got, spelling in zip(answer["rules"], asked_about, strict=True):
            exact = what_if(position.rows, spelling)
            ids = [candidate.token_id for candidate in position.candidates]
            assert got["emitted"] == exact.emitted[ids].tolist()
            assert (got["emitted_nats"], got["tv"], got["acceptance"]) == (
                exact.emitted_nats,
                exact.tv,
                exact.acceptance,
            )
        recorded = to_json(position)
        assert [one["emitted"] for one in recorded["candidates"]] == answer["rules"][0]["emitted"]
        assert recorded["emitted_nats"] == answer["rules"][0]["emitted_nats"]


def test_what_if_where_there_is_no_answer_says_so(server):
    events = server.events(asked())
    run, steps = events[0]["run"], [event for event in events if event["event"] == "step"]
    bonus = next(one["place"] for step in steps for one in step["positions"] if one["fate"] == "bonus")
    ask = {"session": 0, "place": bonus, "rules": ["lossless"]}
    for change, sentence in (
        ({}, "nothing was drafted at this token"),
        ({"place": 10_000}, "no token 10000"),
        ({"place": -1}, "place must be at least 0"),
        ({"session": 1}, "session must be between 0 and 0"),
        ({"place": 0, "rules": ["cactus:delta=x"]}, "delta must be a number"),
        ({"place": 0, "rules": []}, "rules must be a list"),
        ({"place": 0, "rules": ["lossless"] * 65}, "rules must be a list of 1 to 64"),
        ({"place": 0, "rules": ["relaxed_greedy:margin=1"]}, "rule for temperature 0"),
    ):
        status, answer = server.post(f"/api/runs/{run}/what-if", ask | change)
        assert status == 422
        assert sentence in answer["message"]


def test_a_step_brings_its_tree(pair):
    session = PlaygroundSession(pair.twin(), PROMPT, Request("clamped:width=1", tree="static=3.2", seed=0))
    steps = []
    while step := session.step():
        steps.append(step)
    for number, step in enumerate(steps[:-1]):
        assert len(step["trees"][number]) == 9
        assert {node["fate"] for node in step["trees"][number]} >= {None}
    position = next(one for step in steps for one in step["positions"] if one["fate"] in ("matched", "recovered"))
    seen = session.what_if(position["place"], position["rule"])
    assert seen["emitted_nats"] == pytest.approx(position["emitted_nats"], abs=1e-12)
    assert f'"{len(steps) - 2}": [' in session.page()


def test_rows_behind_the_limit_are_not_held_by_anyone(pair):
    before = {id(each) for each in gc.get_objects() if type(each) is PositionRows}
    limit = 60_000
    session = PlaygroundSession(pair.twin(), PROMPT, Request(seed=0), max_rows_bytes=limit)
    positions = []
    while step := session.step():
        positions += step["positions"]
    held = [each for each in gc.get_objects() if type(each) is PositionRows and id(each) not in before]
    assert 0 < session.bytes == sum(each.nbytes for each in held) <= limit
    drafted = [one["place"] for one in positions if one["drafted_id"] is not None]
    assert len(held) < len(drafted)
    assert session.what_if(drafted[0], "lossless")["rule"] == "lossless"
    with pytest.raises(ValueError, match="took all memory for them"):
        session.what_if(drafted[-1], "lossless")
    with pytest.raises(ValueError, match="nothing was drafted"):
        session.what_if(next(one["place"] for one in positions if one["fate"] == "bonus"), "lossless")
    with pytest.raises(ValueError, match="max_rows_bytes"):
        PlaygroundSession(pair.twin(), PROMPT, Request(seed=0), max_rows_bytes=-1)


def test_a_step_may_propose_nothing_where_that_pays(pair, tmp_path):
    profile = tmp_path / "profile.json"
    profile.write_text('{"times": {"target": [[1, 1.0], [16, 9.0]], "draft": 0.5, "reading": 0.1}}')
    asked = Request("clamped:width=1", num_speculative_tokens=f"auto:profile={profile}", seed=0)
    session = PlaygroundSession(pair.twin(), PROMPT, asked)
    while session.step():
        pass
    assert session.header["num_speculative_tokens"].startswith("auto")
    assert session.end()["metrics"]["drafted"] == 0
