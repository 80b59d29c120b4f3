"""The playground's server: generating in every way, and handing out the trace."""

from __future__ import annotations

import pytest
from support.outside_module import outside_module
from support.playground_server import asked, tokens
from support.tables import all_of

from cactus_decoding.core.request import SETTINGS
from cactus_decoding.lab.playground.server import PLAYGROUND_PAGE
from cactus_decoding.lab.tracing import read_trace
from cactus_decoding.lab.tracing.page import TRACE_PAGE as SHARED


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


@all_of("more", [{"draft": "ngram"}, {"num_speculative_tokens": "confidence:threshold=0.3"}, {"temperature": 0},
                 {"verification": "block"}])  # fmt: skip
def test_other_ways_to_generate(server, more):
    events = server.events(asked("lossless", max_new_tokens=24, **more))
    assert events[-1]["event"] == "finished"
    assert 1 <= len(tokens(events)) <= 24


def test_the_trace_can_be_taken_along(server, tmp_path):
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
    assert server.ask("GET", "/api/runs/nonsense/0/trace.html")[0] == 404
    for ask, body in (("stop", {}), ("what-if", {"session": 0, "place": 0, "rules": ["lossless"]})):
        assert server.post(f"/api/runs/nonsense/{ask}", body)[0] == 404


@all_of("headers, body, status", [
    ({"Host": "evil.example"}, b"{}", 403),
    ({"Host": "127.0.0.1.evil.example"}, b"{}", 403),
    ({"Origin": "http://evil.example"}, b"{}", 403),
    ({"Origin": "null"}, b"{}", 403),
    ({"Content-Type": "text/plain"}, b"{}", 400),
    ({"Content-Type": "application/x-www-form-urlencoded"}, b"prompt=a", 400),
    ({}, b"[1]", 400),
    ({}, b"{", 400),
    ({}, b"[" * 60_000, 400),
    ({}, b'{"prompt": ' + b"[" * 600 + b"]" * 600 + b"}", 400),
    ({}, b'{"prompt": "\\ud800"}', 400),
    ({}, b'{"\\udc00": 1}', 400),
    ({}, b" " * 150_000, 400),
])  # fmt: skip
def test_requests_that_no_page_of_ours_sends_are_refused(server, headers, body, status):
    got, _, answer = server.ask("POST", "/api/runs", body, headers)
    assert got == status
    assert answer
    assert b"Traceback" not in answer
    if "Host" in headers:  # reading is refused too
        assert server.ask("GET", "/", None, headers)[0] == status


ASKED = {"session": 0, "place": 0, "rules": ["lossless"]}


def test_no_request_imports_a_module(server, tmp_path, monkeypatch):
    """Whatever field of whatever address holds its name."""
    module, base = outside_module(tmp_path, monkeypatch), asked("lossless", max_new_tokens=4)
    begun = server.events(base)[0]
    run, prefix = begun["run"], "/api/runs/{run}"
    posted = {f"{prefix}/what-if": ASKED, f"{prefix}/stop": {}, "/api/check": base, "/api/runs": base}
    routes = server.playground.application(None)._app.routes
    assert {route.path for route in routes if "POST" in route.methods} == {*posted}
    for route in routes:
        if "GET" in route.methods:
            path = route.path.replace("{run}", run).replace("{session:int}", "0")
            for part in ("{name}", "{kind}"):
                path = path.replace(part, module.spelling)
            assert server.ask("GET", path)[0] in (200, 404)
            assert not module.was_imported, path
    refused = set()
    for path, body in posted.items():
        for name in {*body, *SETTINGS, "rule", "target", "draft", "chat", "system", "after", "rules"}:
            for value in (module.spelling, [module.spelling]):
                status, _, answer = server.ask("POST", path.replace("{run}", run), body | {name: value})
                assert status in (200, 422), (path, name, answer)
                assert not module.was_imported, (path, name)
                if b"is not taken from here" in answer:
                    assert status == 422
                    refused.add((path, name))
    assert refused == {(path, "rules") for path in posted if not path.endswith("/stop")}


def test_the_page_may_load_nothing_from_elsewhere(server):
    assert server.ask("GET", "/", None, {"Host": f"localhost:{server.port}"})[0] == 200
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


@all_of("name", ["index.html", "nothing.js", "..%2fserver.py", "%2e%2e/server.py", "trace.html.jinja"])
def test_no_other_file_is_an_asset(server, name):
    assert server.ask("GET", f"/assets/{name}")[0] == 404
    both = [path.name for folder in (PLAYGROUND_PAGE, SHARED) for path in folder.iterdir()]
    assert len(both) == len(set(both))  # none hides another of the same name


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
