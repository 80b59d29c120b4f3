"""The playground's server: what it offers, refuses, generates and answers; whose turn it is; what is handed out."""

from __future__ import annotations

import json
import math
import signal
import socket
import subprocess
import sys
from dataclasses import fields, replace

import anyio
import pytest
from support.playground_server import QUESTION, asked, running

from cactus_decoding import RULES, load_pair, parse_rule, stream
from cactus_decoding.playground.form import form, rule
from cactus_decoding.playground.limits import Limits
from cactus_decoding.playground.pair_store import KEPT, Shelf
from cactus_decoding.playground.request import read_request
from cactus_decoding.playground.request_queue import Line
from cactus_decoding.playground.runs import Runs
from cactus_decoding.tracing import read_trace, stream_trace, to_json, what_if
from cactus_decoding.zoo.word_problems import format_prompt

PROMPT = format_prompt(QUESTION)


@pytest.fixture(scope="module")
def server():
    with running() as started:
        yield started


@pytest.fixture(scope="module")
def pair():
    return load_pair()


def tokens(events, lane=0):
    steps = [event for event in events if event["event"] == "step" and event["lane"] == lane]
    return [one["token_id"] for step in steps for one in step["positions"] if one["emitted"]]


# --- what the page offers ---


@pytest.mark.parametrize("name", RULES)
def test_rules_are_described_by_their_own_code(name):
    described = rule(name)
    assert described["title"]
    assert [knob["name"] for knob in described["knobs"]] == [field.name for field in fields(RULES[name])]
    assert all(knob["doc"] for knob in described["knobs"])
    for preset in described["presets"]:
        parsed = parse_rule(preset["spelling"])
        assert parsed.name == name
        assert {key: value for key, value in vars(parsed).items() if value != math.inf} == {
            key: value for key, value in preset["values"].items() if value is not None or getattr(parsed, key) is None
        }


@pytest.mark.parametrize("name", RULES)
def test_choices_and_ranges_are_those_that_the_rule_allows(name):
    described = rule(name)
    start = parse_rule(described["presets"][0]["spelling"])
    for knob in described["knobs"]:
        for word in knob["choices"]:
            exact = {"solver": "exact"} if name == "cactus" and knob["name"] != "solver" else {}
            assert getattr(replace(start, **exact | {knob["name"]: word}), knob["name"]) == word
        if knob["kind"] == "str":
            with pytest.raises(ValueError, match="must be one of") as refusal:
                replace(start, **{knob["name"]: "no such word"})
            assert all(word in str(refusal.value) for word in knob["choices"])
            assert str(refusal.value).count(",") == len(knob["choices"])
        for end in knob["range"] or ():
            nothing_else = {"width": None, "max_kl": None} if name == "clamped" else {}
            replace(start, **nothing_else | {knob["name"]: end})


def test_the_form_is_json_and_names_every_rule():
    offered = json.loads(json.dumps(form(Limits(), models=False), allow_nan=False))
    assert [each["name"] for each in offered["rules"]] == list(RULES)
    assert len({each["question"] for each in offered["examples"]}) == len(offered["examples"])
    assert [knob["name"] for knob in offered["sampling"]] == ["temperature", "top_k", "top_p", "min_p"]
    assert all(knob["doc"] for part in ("sampling", "budget") for knob in offered[part])


# --- what it refuses ---


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"prompt": "  "}, "the prompt is empty"),
        ({"prompt": 3}, "the prompt is empty"),
        ({"prompt": "a" * 8001}, "the prompt has 8001 characters; allowed are 8000"),
        ({"rules": []}, "rules must be a list of one or two spellings"),
        ({"rules": ["lossless"] * 3}, "rules must be a list of one or two spellings"),
        ({"rules": ["nonsense"]}, "unknown rule 'nonsense'"),
        ({"rules": ["cactus:delta=-1"]}, "delta must be in [0, inf), but is -1.0"),
        ({"rules": [7]}, "must be a string"),
        ({"seed": -1}, "seed must be between 0 and"),
        ({"seed": "one"}, "seed must be an integer"),
        ({"max_new_tokens": 513}, "max_new_tokens must be between 1 and 512, but is 513"),
        ({"sampling": {"top_p": 2}}, "top_p must be in (0, 1]"),
        ({"sampling": {"heat": 2}}, "sampling has no 'heat'"),
        ({"sampling": 1}, "sampling must be an object"),
        ({"num_speculative_tokens": 65}, "at most 64 on this server, but is 65"),
        ({"num_speculative_tokens": "many"}, "unknown draft length 'many'"),
        ({"num_speculative_tokens": 1.5}, "num_speculative_tokens must be a number of proposals"),
        ({"verification": "both"}, "verification must be one of token, block"),
        ({"budget": {"nats": -1}}, "nats must be in [0, inf]"),
        ({"budget": {"nats": 1, "max_shift": 0.1}}, "give either nats or max_shift"),
        ({"target": 5}, "target must be a model's name or path"),
        ({"stop": ["a"]}, "the request has no 'stop'"),
    ],
)
def test_a_bad_request_is_answered_with_a_sentence(server, change, sentence):
    status, answer = server.post("/api/runs", asked() | change)
    assert status == 422
    assert sentence in answer["message"]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"rules": ["top_k:k=5"], "verification": "block"}, "block"),
        ({"rules": ["relaxed_greedy:margin=1"]}, "set the temperature to 0"),
        ({"prompt": "a " * 3000}, "the prompt must be shorter than"),
        ({"target": "/no/such/model", "draft": "ngram"}, "there is no folder '/no/such/model'"),
        ({"target": "/no/such/model"}, "a draft is missing"),
        ({"budget": {"nats": 1, "expected_tokens": 50}}, "the rule must be clamped:width"),
    ],
)
def test_what_only_the_models_can_refuse_ends_the_stream_with_a_sentence(server, change, sentence):
    last = server.events(asked() | change)[-1]
    assert last["event"] == "error"
    assert sentence in last["message"]
    assert "Traceback" not in last["message"]
    assert server.events(asked(max_new_tokens=4))[-1]["event"] == "finished"  # and the seat is free


def test_models_by_name_need_leave():
    for change, sentence in (
        ({"target": "gpt2", "draft": "ngram"}, "target must be left empty"),
        ({"draft": "x"}, "draft"),
    ):
        with pytest.raises(ValueError, match=sentence):
            read_request(asked() | change, Limits(), models=False)
    assert read_request(asked(draft="ngram"), Limits(), models=False).draft == "ngram"


def test_a_broken_checkpoint_is_a_sentence_too(tmp_path):
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ValueError, match="cannot load"):
        Shelf().get(str(tmp_path), "ngram")


def test_code_that_comes_with_a_model_is_not_run(tmp_path):
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "evil", "auto_map": {"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.M"}})
    )
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass C: pass\nclass M: pass\n")
    with pytest.raises(ValueError, match="cannot load"):
        Shelf().get(str(tmp_path), "ngram")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        ({"Host": "evil.example"}, b"{}", 403),
        ({"Host": "127.0.0.1.evil.example"}, b"{}", 403),
        ({"Origin": "http://evil.example"}, b"{}", 403),
        ({"Origin": "null"}, b"{}", 403),
        ({"Content-Type": "text/plain"}, b"{}", 400),
        ({"Content-Type": "application/x-www-form-urlencoded"}, b"prompt=a", 400),
        ({}, b"[1]", 400),
        ({}, b"{", 400),
        ({}, b"[" * 60_000, 400),
        ({}, b" " * 150_000, 400),
    ],
)
def test_requests_that_no_page_of_ours_sends_are_refused(server, headers, body, status):
    got, _, answer = server.ask("POST", "/api/runs", body, headers)
    assert got == status
    assert answer
    assert b"Traceback" not in answer


def test_reading_from_another_host_name_is_refused_too(server):
    assert server.ask("GET", "/", None, {"Host": "evil.example"})[0] == 403
    assert server.ask("GET", "/", None, {"Host": f"localhost:{server.port}"})[0] == 200


def test_the_page_may_load_nothing_from_elsewhere(server):
    for path, kind in (("/", "text/html"), ("/assets/play.js", "text/javascript"), ("/assets/answer.css", "text/css")):
        status, headers, body = server.ask("GET", path)
        assert status == 200
        assert headers["content-type"].startswith(kind)
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert b"http://" not in body.replace(b"http://www.w3.org/2000/svg", b"")
        assert b"https://" not in body


@pytest.mark.parametrize("name", ["index.html", "nothing.js", "..%2fserver.py", "%2e%2e/server.py", "trace.html.jinja"])
def test_no_other_file_is_an_asset(server, name):
    assert server.ask("GET", f"/assets/{name}")[0] == 404


# --- generating ---


def test_both_lanes_are_what_they_would_be_alone(server, pair):
    rules = ["cactus:delta=1.0", "lossless"]
    events = server.events(asked(*rules, sampling={"top_p": 0.9}, seed=5))
    assert events[0]["event"] == "started"
    assert [lane["rule"] for lane in events[0]["lanes"]] == rules
    assert events[-1] == {"event": "finished"}
    for lane, spelling in enumerate(rules):
        alone = stream(pair, PROMPT, rule=spelling, top_p=0.9, seed=5)
        steps = list(alone)
        assert tokens(events, lane) == alone.token_ids
        (end,) = [event for event in events if event["event"] == "ended" and event["lane"] == lane]
        assert (end["text"], end["finish_reason"]) == (alone.text, "stop")
        assert end["metrics"]["steps"] == len(steps)
        assert end["metrics"]["relaxed"] == alone.metrics.relaxed
    order = [event["lane"] for event in events if event["event"] == "step"]
    assert order[:6] == [0, 1, 0, 1, 0, 1]  # they take turns


def test_a_seed_that_was_drawn_is_told(server):
    first = server.events(asked(seed=None, max_new_tokens=20))
    again = server.events(asked(seed=first[0]["seed"], max_new_tokens=20))
    assert tokens(first) == tokens(again)


def test_a_budget_is_kept_and_told(server):
    events = server.events(asked("cactus:delta=1.0", "lossless", budget={"max_shift": 0.1}))
    assert [lane["budget_nats"] for lane in events[0]["lanes"]] == [pytest.approx(0.02), None]
    positions = [
        one for event in events if event.get("lane") == 0 and event["event"] == "step" for one in event["positions"]
    ]
    assert sum(one["emitted_nats"] for one in positions) <= 0.02
    assert any(one["fell_back"] for one in positions)


@pytest.mark.parametrize("more", [{"draft": "ngram"}, {"num_speculative_tokens": "confidence:threshold=0.3"},
                                  {"sampling": {"temperature": 0}}, {"verification": "block"}])  # fmt: skip
def test_other_ways_to_generate(server, pair, more):
    events = server.events(asked("lossless", max_new_tokens=24, **more))
    assert events[-1]["event"] == "finished"
    assert 1 <= len(tokens(events)) <= 24


# --- what if ---


def test_what_if_is_exact(server, pair):
    events = server.events(asked("cactus:delta=0.5", sampling={"top_p": 0.95}, seed=2))
    run = events[0]["run"]
    response = stream_trace(pair.twin(), PROMPT, rule="cactus:delta=0.5", top_p=0.95, seed=2, keep_rows=True)
    positions = [position for step in response for position in step.positions if position.rows is not None]
    asked_about = ["cactus:delta=0.5", "cactus:delta=3.0,solver=exact", "clamped:width=0.7", "lossless", "top_k:k=3"]
    for position in positions[:12]:
        status, answer = server.post(
            f"/api/runs/{run}/what-if", {"lane": 0, "place": position.place, "rules": asked_about}
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
    ask = {"lane": 0, "place": bonus, "rules": ["lossless"]}
    for change, sentence in (
        ({}, "nothing was drafted at this token"),
        ({"place": 10_000}, "no token 10000"),
        ({"place": -1}, "place must be at least 0"),
        ({"lane": 1}, "lane must be between 0 and 0"),
        ({"place": 0, "rules": ["cactus:delta=x"]}, "delta must be a number"),
        ({"place": 0, "rules": []}, "rules must be a list"),
        ({"place": 0, "rules": ["lossless"] * 65}, "rules must be a list of 1 to 64"),
        ({"place": 0, "rules": ["relaxed_greedy:margin=1"]}, "rule for temperature 0"),
    ):
        status, answer = server.post(f"/api/runs/{run}/what-if", ask | change)
        assert status == 422
        assert sentence in answer["message"]


def test_the_oldest_run_is_forgotten(pair):
    runs, request = Runs(2), read_request(asked(), Limits(), models=False)
    names = [runs.begin(pair, request).name for _ in range(3)]
    assert len(set(names)) == 3
    with pytest.raises(ValueError, match="no longer kept"):
        runs.get(names[0])
    assert [runs.get(name).name for name in names[1:]] == names[1:]


def test_an_unknown_run_is_not_found(server):
    assert server.post("/api/runs/nonsense/stop", {})[0] == 404
    assert server.post("/api/runs/nonsense/what-if", {"lane": 0, "place": 0, "rules": ["lossless"]})[0] == 404
    assert server.ask("GET", "/api/runs/nonsense/0/trace.html")[0] == 404


# --- downloads ---


def test_the_trace_can_be_taken_along(server, pair, tmp_path):
    events = server.events(asked("cactus:delta=1.0", seed=3))
    run = events[0]["run"]
    status, headers, body = server.ask("GET", f"/api/runs/{run}/0/trace.jsonl")
    assert status == 200
    assert headers["content-disposition"].startswith("attachment; filename=")
    (tmp_path / "trace.jsonl").write_bytes(body)
    trace = read_trace(tmp_path / "trace.jsonl")
    assert trace.token_ids == tokens(events)
    assert trace.header.seed == 3
    assert all(position.rows is not None for position in trace.positions if position.drafted_id is not None)
    status, headers, body = server.ask("GET", f"/api/runs/{run}/0/trace.html")
    assert status == 200
    assert headers["content-disposition"].endswith('.html"')
    assert b"CactusAnswer" in body
    assert server.ask("GET", f"/api/runs/{run}/1/trace.html")[0] == 422
    assert server.ask("GET", f"/api/runs/{run}/0/trace.exe")[0] == 404


# --- whose turn it is ---


def test_everyone_in_line_knows_their_place():
    async def stand_in_line():
        line, seen = Line(2), []
        first, second, third = line.join(), line.join(), line.join()
        with pytest.raises(ValueError, match="2 others are waiting"):
            line.check_open()

        async def wait(place, name):
            with place:
                async for ahead in place.ahead():
                    seen.append((name, ahead))
                seen.append((name, 0))
                await anyio.wait_all_tasks_blocked()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait, second, "second")
            tasks.start_soon(wait, third, "third")
            await anyio.wait_all_tasks_blocked()
            with first:
                pass
        return seen

    seen = anyio.run(stand_in_line)
    assert [ahead for name, ahead in seen if name == "second"] == [1, 0]
    assert [ahead for name, ahead in seen if name == "third"] == [2, 1, 0]


def test_one_generation_at_a_time_and_a_stop_ends_it(server):
    with server.held() as gate, server.following(asked("lossless", max_new_tokens=200)) as first:
        started = next(first)
        gate.release()
        assert next(first)["event"] == "step"
        with server.following(asked("cactus:delta=1.0", max_new_tokens=8)) as second:
            assert next(second) == {"event": "queued", "ahead": 1}
            assert server.post(f"/api/runs/{started['run']}/stop", {}) == (200, {})
            gate.release(100)
            rest = list(first)
            (end,) = [event for event in rest if event["event"] == "ended"]
            assert end["finish_reason"] == "stopped"
            assert len([event for event in rest if event["event"] == "step"]) <= 1
            events = list(second)
            assert events[0]["event"] == "started"
            assert events[-1]["event"] == "finished"


def test_whoever_leaves_frees_the_seat(server):
    with server.held() as gate:
        with server.following(asked("lossless", max_new_tokens=200)) as first:
            assert next(first)["event"] == "started"
            with server.following(asked(max_new_tokens=8)) as waiting:  # leaves while it waits
                assert next(waiting) == {"event": "queued", "ahead": 1}
        with server.following(asked("lossless", max_new_tokens=8)) as third:
            gate.release(1)  # the first one's step ends, and it finds that nobody listens
            seen = [next(third)]
            gate.release(100)
            seen += list(third)
    assert next(event["event"] for event in seen if event["event"] != "queued") == "started"
    assert seen[-1]["event"] == "finished"


def test_a_full_line_turns_visitors_away():
    with running(Limits(waiting=1)) as server, server.held(), server.following(asked()) as first:
        assert next(first)["event"] == "started"
        with server.following(asked()) as second:
            assert next(second)["event"] == "queued"
            status, answer = server.post("/api/runs", asked())
            assert status == 503
            assert "1 others are waiting" in answer["message"]


def test_named_pairs_are_loaded_once_and_few_are_kept(monkeypatch):
    loaded = []
    monkeypatch.setattr("cactus_decoding.playground.pair_store.load_pair", lambda *names: loaded.append(names) or names)
    shelf = Shelf()
    for name in (None, "a", "b", "a", None, "c", "a", "b"):
        shelf.get(name, None if name is None else "ngram")
    assert loaded == [(None, None), ("a", "ngram"), ("b", "ngram"), ("c", "ngram"), ("b", "ngram")]
    assert KEPT == 2
    assert shelf.has(None, None)


def test_twins_do_not_disturb_each_other(pair):
    whole = [stream(pair.twin(), PROMPT, seed=seed, max_new_tokens=30) for seed in (0, 1)]
    while any([next(response, None) for response in whole]):
        pass
    alone = [stream(pair, PROMPT, seed=seed, max_new_tokens=30) for seed in (0, 1)]
    assert [response.token_ids for response in whole] == [
        [token for step in response for token in step.token_ids] for response in alone
    ]
    assert pair.twin().target.model is pair.target.model


# --- the command ---


def test_mistakes_of_the_command_are_sentences(run, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, _, err = run("play", "--no-browser", "--port", port)
    assert code == 2
    assert f"cannot listen on 127.0.0.1:{port}" in err
    for arguments, sentence in (
        (["--draft", "gpt2"], "--draft gpt2 needs --target"),
        (["--target", str(tmp_path / "none"), "--draft", "ngram"], "there is no folder"),
        (["--host", "no.such.host.invalid", "--port", "0"], "cannot listen on no.such.host.invalid"),
        (["--port", "70000"], "--port"),
        (["--max-new-tokens", "0"], "--max-new-tokens"),
    ):
        code, _, err = run("play", "--no-browser", *arguments)
        assert code == 2
        assert sentence in err
        assert "Traceback" not in err


@pytest.mark.slow
def test_the_command_serves_until_it_is_interrupted():
    command = [sys.executable, "-c", "import sys; from cactus_decoding.cli import main; sys.exit(main())"]
    arguments = ["play", "--no-browser", "--port", "0"]
    with subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("cactus play: http://127.0.0.1:")
        address = line.split()[2]
        with socket.create_connection(("127.0.0.1", int(address.rsplit(":", 1)[1].strip("/")))) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            assert connection.recv(15) == b"HTTP/1.1 200 OK"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
