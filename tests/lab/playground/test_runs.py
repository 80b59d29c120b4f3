"""Pairs that are kept, sessions that are what they would be alone, and what another rule would have done in them."""

from __future__ import annotations

import gc
import json
import sys
from types import FunctionType, ModuleType

import pytest
import torch
from support.playground_server import QUESTION, asked, running, tokens
from support.reads import reads
from transformers import PreTrainedTokenizerBase

from cactus_decoding import Pair, Request, stream
from cactus_decoding.core.models.base import BaseCachedModel
from cactus_decoding.core.types import Drafter
from cactus_decoding.lab.playground.form import FormLimits, read_request
from cactus_decoding.lab.playground.runs import KEPT, PairStore, PlaygroundSession, Runs
from cactus_decoding.lab.tracing import PositionRows, stream_trace, to_json, what_if
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
    names = []
    for _ in range(3):
        run = runs.begin(pair, request)
        names.append(run.name)
        run.close()
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
        new.close()
        return new, max(count for _, count in found), [session.end()["text"] for session in new.sessions], answers

    runs, longer = Runs(4), f"{QUESTION} Why?"
    first, whole, _, _ = run(runs, QUESTION)
    _, as_whole, expected, _ = run(Runs(4), longer)
    assert as_whole > whole
    for after in ("", "nonsense"):
        assert run(Runs(4), longer, after)[1] == as_whole
    second, rest, texts, _ = run(runs, longer, first.name)
    assert rest < whole / 2
    assert texts == expected
    found = run(runs, longer, first.name)[1]  # whose caches another run has by now
    assert found == as_whole
    assert run(runs, longer, second.name)[1] == as_whole  # after somebody else's run
    last, _, _, _ = run(runs, longer)
    assert run(runs, longer, last.name, on=pair.twin())[1] == as_whole  # of another pair
    begun = begin(runs, QUESTION)
    begun.sessions[0].step()
    begun.close()  # its visitor leaves
    assert run(runs, longer, begun.name)[2] == expected
    assert begun.sessions[0].step() is None
    assert first.sessions[0].lines()


def reachable(*begin: object) -> list[object]:
    """Return all that objects hold, but classes, modules and functions, which are everybody's."""
    found, left = dict[int, object](), list(begin)
    while left:
        if id(each := left.pop()) not in found and not isinstance(each, (type, ModuleType, FunctionType)):
            found[id(each)] = each
            left += gc.get_referents(each)
    return list(found.values())


def storages(found: list[object]) -> int:
    held = [each.untyped_storage() for each in found if isinstance(each, torch.Tensor)]
    return sum({each.data_ptr(): each.nbytes() for each in held}.values())


@pytest.mark.parametrize("given", [{}, {"tree": "static=3.2"}, {"num_speculative_tokens": "auto"}, {"temperature": 0}])
def test_what_is_kept_of_a_run_is_counted_and_holds_no_models(pair, given):
    runs = Runs(4)
    rule = "relaxed_greedy:margin=1" if "temperature" in given else "clamped:width=1"
    body = asked(rule, "lossless", max_new_tokens=24, **given)
    for _ in range(2):
        run = runs.begin(pair, read_request(body, FormLimits(), models=False))
        for session in run.sessions:
            session.step()
        assert any(isinstance(each, Pair) for each in reachable(run))  # it could go on
        for session in run.sessions[:1]:
            assert [*iter(session.step, None)]
        run.close()  # the second session was stopped
        found = reachable(run)
        assert not [each for each in found if isinstance(each, (Pair, BaseCachedModel, Drafter, torch.nn.Module))]
        assert not [each for each in found if isinstance(each, PreTrainedTokenizerBase)]
        assert storages(found) > 0
        assert storages(found) + sum(map(sys.getsizeof, found)) < run.bytes
        assert run.sessions[0].lines()
        assert run.sessions[1].page()


def test_a_run_that_was_served_lets_go_of_the_models(server):
    events = server.events(asked(max_new_tokens=8))
    assert events[-1] == {"event": "finished"}
    run = server.playground.runs.get(events[0]["run"])
    assert not [each for each in reachable(run) if isinstance(each, (Pair, BaseCachedModel))]


def test_runs_are_forgotten_where_they_take_too_much(pair, monkeypatch):
    runs, request = Runs(4), read_request(asked(max_new_tokens=8), FormLimits(), models=False)

    def run():
        begun = runs.begin(pair, request)
        assert [*iter(begun.sessions[0].step, None)]
        begun.close()
        return begun

    kept = [run() for _ in range(3)]
    limit = sum(each.bytes for each in kept) - kept[0].bytes // 2  # too little for all of them and a new one
    monkeypatch.setattr("cactus_decoding.lab.playground.runs.KEPT_BYTES", limit)
    last = run()
    assert [each.name in runs._runs for each in (*kept, last)] == [False, True, True, True]


def test_what_if_is_exact(server, pair):
    events = server.events(asked("cactus:delta=0.5", top_p=0.95, seed=2))
    run = events[0]["run"]
    response = stream_trace(pair.twin(), PROMPT, rule="cactus:delta=0.5", top_p=0.95, seed=2, keep_rows=True)
    positions = [position for step in response for position in step.positions if position.rows is not None]
    asked_about = ["cactus:delta=0.5", "cactus:delta=3.0,solver=exact", "clamped:width=0.7", "lossless", "top_k:k=3"]
    for position in positions[:12]:
        body = {"session": 0, "place": position.place, "rules": asked_about}
        status, answer = server.post(f"/api/runs/{run}/what-if", body)
        assert status == 200
        assert [one["rule"] for one in answer["rules"]] == asked_about
        for got, spelling in zip(answer["rules"], asked_about, strict=True):
            exact = what_if(position.rows, spelling)
            ids = [candidate.token_id for candidate in position.candidates]
            assert got["emitted"] == exact.emitted[ids].tolist()
            assert [got[name] for name in ("emitted_nats", "tv", "acceptance")] == [
                exact.emitted_nats, exact.tv, exact.acceptance]  # fmt: skip
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
    assert 0 < sum(each.nbytes for each in held) <= limit
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


def test_a_broken_checkpoint_is_a_sentence_and_code_that_comes_with_a_model_is_not_run(tmp_path):
    evil = {"model_type": "evil", "auto_map": {"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.M"}}
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass C: pass\nclass M: pass\n")
    for config in ([], evil):
        (tmp_path / "config.json").write_text(json.dumps(config))
        with pytest.raises(ValueError, match="cannot load"):
            PairStore().get(str(tmp_path), "ngram")
    assert not (tmp_path / "ran").exists()


def test_named_pairs_are_loaded_once_and_few_are_kept(monkeypatch):
    loaded = []
    monkeypatch.setattr("cactus_decoding.lab.playground.runs.load_pair", lambda *names: loaded.append(names) or names)
    pairs = PairStore()
    for name in (None, "a", "b", "a", None, "c", "a", "b"):
        pairs.get(name, None if name is None else "ngram")
    assert loaded == [(None, None), ("a", "ngram"), ("b", "ngram"), ("c", "ngram"), ("b", "ngram")]
    assert KEPT == 2
    assert pairs.has(None, None)


def test_visitors_may_name_files_for_llama_cpp(gguf):
    names = {name: f"{gguf(model)}:cache=float32" for name, model in (("target", "target"), ("draft", "worded"))}
    names["chat"] = False  # the prompt is one already
    with running() as server:
        whole = asked("cactus:delta=0.5", prompt=PROMPT, top_p=0.95)
        assert tokens(server.events(whole | names)) == tokens(server.events(asked("cactus:delta=0.5", top_p=0.95)))
        cut = gguf("draft").with_name("cut.gguf")
        cut.write_bytes(gguf("draft").read_bytes()[:5000])
        *_, last = server.events(whole | {"target": str(cut), "draft": "ngram"})
        assert last["event"] == "error"
        assert last["message"].startswith(f"cannot load the target {str(cut)!r}: ")
        assert tokens(server.events(asked()))  # the server goes on
