"""Faults on purpose, one a request: the next visitor gets what there would have been without."""

from __future__ import annotations

import json
from collections import Counter
from itertools import cycle

import pytest
from starlette.responses import JSONResponse
from support import in_thread
from support.faults import Faults, kill
from support.in_thread import leave_after, leave_within
from support.playground_server import Running, asked, running, tokens

from cactus_decoding.core.worker import WorkerProcess
from cactus_decoding.engines.llama_cpp.models.context import Context
from cactus_decoding.engines.llama_cpp.models.tokenizer import GgufTokenizer
from cactus_decoding.engines.transformers.forward import GeneralForward
from cactus_decoding.lab.playground import server as server_module
from cactus_decoding.lab.playground.form import FormLimits
from cactus_decoding.lab.playground.runs import PlaygroundSession

SHORT = {"max_new_tokens": 12, "num_speculative_tokens": 3}
ONE, TWO = (asked(*rules, **SHORT) for rules in (["cactus:delta=1.0"], ["cactus:delta=1.0", "lossless"]))
RUN = "/api/runs/{run}"
ROUTES = {
    "a run": ("POST", "/api/runs", ONE),
    "two rules": ("POST", "/api/runs", TWO),
    "a check": ("POST", "/api/check", TWO),
    "what if": ("POST", RUN + "/what-if", {"session": 0, "place": 2, "rules": ["lossless", "cactus:delta=0.1"]}),
    "a trace": ("GET", RUN + "/0/trace.jsonl", None),
    "a trace's page": ("GET", RUN + "/0/trace.html", None),
    "a stop": ("POST", RUN + "/stop", {}),
    "the form": ("GET", "/api/form", None),
    "the page": ("GET", "/", None),
    "an asset": ("GET", "/assets/play.js", None),
}
MOST = 10  # calls of a request of which each fails once
PROCESS = (WorkerProcess, "_ask")


class Visited:
    """A playground that is asked by the names of requests."""

    def __init__(self, server: Running) -> None:
        self.server, self.faults, self._next = server, Counter[str](), cycle(ROUTES)
        pair = server.playground.pairs.get(None, None)
        kind = type(pair.tokenizer)
        forward = (Context, "read") if kind is GgufTokenizer else (GeneralForward, "append")
        session = [(PlaygroundSession, name) for name in ("page", "lines", "what_if", "end")]
        self.kinds = {
            "the writer": Faults((server_module, "as_json"), (JSONResponse, "render")),
            "the writer from then on": Faults((server_module, "as_json"), (JSONResponse, "render"), lasting=True),
            "the tokenizer": Faults((kind, "__call__"), (kind, "decode")),
            "a pass": Faults(forward),
            "after a pass": Faults(forward, after=True),
            "after a step": Faults((PlaygroundSession, "step"), after=True),
            "what is told of a run": Faults(*session),
        }
        if kind is GgufTokenizer:
            self.kinds |= {
                "the template's process": Faults(PROCESS, does=kill),
                "after the template's process": Faults(PROCESS, after=True),
            }
        self._run = server.events(TWO)[0]["run"]
        self.expected = {name: self(name) for name in ROUTES}

    def request(self, name: str) -> tuple[int, str, str, object]:
        method, path, body = ROUTES[name]
        return self.server.port, method, path.format(run=self._run), body

    def __call__(self, name: str) -> object:
        status, text = in_thread.asked(*self.request(name))
        if ROUTES[name][1] != "/api/runs" or status != 200:
            return status, text
        events = [json.loads(line) for line in text.splitlines()]
        told = [event["text"] for event in events if event["event"] == "ended"]
        return events[-1]["event"], told, [tokens(events, session) for session in range(2)]

    def check_next(self, fault: object, name: str) -> None:
        for each in (name, next(self._next)):
            assert self(each) == self.expected[each], (fault, each)
        assert not self.server.playground.queue._places, fault

    def fail(self, name: str, kind: str, number: int) -> bool:
        """Have something fail in a request and check the next ones; return whether there was so much to fail."""
        fault = self.kinds[kind]
        with fault.at(number):
            status, text = in_thread.asked(*self.request(name))
        if not fault.happened:
            return False
        assert status != 200 or json.loads(text.splitlines()[-1])["event"] == "error", (name, kind, number, text)
        assert "Traceback" not in text
        self.faults[kind] += 1
        self.check_next((name, kind, number), name)
        return True


@pytest.fixture(scope="module", params=["transformers", "llama.cpp"])
def visited(gguf, request):
    files = f"{gguf('target')}:cache=float32,context_size=512,threads=1", f"{gguf('worded')}:cache=float32"
    pair = (None, None) if request.param == "transformers" else files
    with running(FormLimits(runs=10_000), models=False, pair=pair) as server:
        yield Visited(server)


def test_a_writer_that_fails_at_any_event_keeps_no_seat(visited):
    number = 1
    while visited.fail("a run", "the writer", number):
        number += 1
    assert number > 3


@pytest.mark.slow
def test_whatever_fails_the_next_visitor_gets_what_there_would_have_been(visited):
    """Faults of each kind, at each of the first calls of each request, and readers who leave after each line."""
    for kind in visited.kinds:
        for name in ROUTES:
            number = 1
            while number <= MOST and visited.fail(name, kind, number):
                number += 1
    for name in ROUTES:
        for lines in range(10 if ROUTES[name][1] == "/api/runs" else 1):
            leave_after(lines, *visited.request(name))
            visited.check_next((name, "left after", lines), name)
            visited.faults["the reader"] += 1
        for part in (40, 120, 150):
            leave_within(part, *visited.request(name))
            visited.check_next((name, "left within", part), name)
            visited.faults["the reader"] += 1
    assert {*visited.faults} == {*visited.kinds, "the reader"}
    assert visited.faults.total() >= 150, visited.faults
