"""Faults on purpose, one a request: the next request is answered as if there had been none."""

from __future__ import annotations

import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle, islice

import pytest
from support.faults import Faults, kill
from support.in_thread import asked, leave_after, leave_within
from support.llama_server import serving_here

from cactus_decoding.core.counters import RuleCounters
from cactus_decoding.core.worker import WorkerProcess
from cactus_decoding.engines.llama_cpp.models.context import Context
from cactus_decoding.engines.llama_cpp.models.tokenizer import GgufTokenizer
from cactus_decoding.engines.llama_cpp.pairs import PairPool
from cactus_decoding.engines.llama_cpp.server import server as server_module
from cactus_decoding.engines.openai import responses as responses_module
from cactus_decoding.zoo.word_problems import EXAMPLES

USER = {"role": "user", "content": EXAMPLES[0].question}
USUAL = {"max_tokens": 12, "seed": 1, "temperature": 1.0}
PROMPT = USUAL | {"prompt": EXAMPLES[1].prompt}
CHAT = USUAL | {"messages": [USER]}
PARAMETERS = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
TOOL = {"name": "add", "description": "Adds", "parameters": PARAMETERS}
FORCED = {"tools": [{"type": "function", "function": TOOL}], "tool_choice": "required", "max_tokens": 20}
TOLD = {"input": EXAMPLES[2].question, "max_output_tokens": 12, "seed": 1}
STREAM = {"stream": True}
COMPLETIONS, CHATS, RESPONSES = "/v1/completions", "/v1/chat/completions", "/v1/responses"
ANSWERS = {
    "completion": (COMPLETIONS, PROMPT),
    "completion, stream": (COMPLETIONS, PROMPT | STREAM),
    "completions, stream": (COMPLETIONS, PROMPT | STREAM | {"n": 2, "max_tokens": 6}),
    "one of some answers": (COMPLETIONS, PROMPT | {"structured_outputs": {"choice": ["yes", "no"]}}),
    "chat": (CHATS, CHAT),
    "chat, stream": (CHATS, CHAT | STREAM | {"stream_options": {"include_usage": True}}),
    "chat, a tool": (CHATS, CHAT | FORCED),
    "chat, a tool, stream": (CHATS, CHAT | FORCED | STREAM),
    "response": (RESPONSES, TOLD),
    "response, stream": (RESPONSES, TOLD | STREAM),
    "response, a tool, stream": (
        RESPONSES,
        TOLD | STREAM | {"tools": [{"type": "function"} | TOOL], "tool_choice": "required", "max_output_tokens": 20},
    ),
}
OTHERS = {
    "tokens": ("/tokenize", {"prompt": "Finn has"}),
    "tokens of a chat": ("/tokenize", {"messages": [USER], "return_token_strs": True}),
    "a text": ("/detokenize", {"tokens": [5, 6, 7]}),
    "health": ("/health", None),
    "metrics": ("/metrics", None),
    "models": ("/v1/models", None),
    "a model": ("/v1/models/m", None),
    "a description": ("/openapi.json", None),
}
ROUTES = ANSWERS | OTHERS
MOST = 8  # calls of a request of which each fails once
# what is new each time, what was in the cache, and fractions, whose last digits depend on how much is read at once
_NEW = re.compile(
    r'"(chatcmpl|cmpl|resp|msg|fc|rs|call)[-_][0-9A-Za-z]+"|"(created(_at)?|cached_tokens)": \d+|-?\d+\.\d+(e-\d+)?'
)


WRITER = (server_module, "as_json"), (responses_module, "as_json")
TOKENIZER = (GgufTokenizer, "__call__"), (GgufTokenizer, "piece"), (GgufTokenizer, "decode")
PROCESS = (WorkerProcess, "_ask")
FAULTS = {
    "the writer": Faults(*WRITER),
    "the writer from then on": Faults(*WRITER, lasting=True),
    "the tokenizer": Faults(*TOKENIZER),
    "a pass": Faults((Context, "read")),
    "after a pass": Faults((Context, "read"), after=True),
    "the template's process": Faults(PROCESS, does=kill),
    "after the template's process": Faults(PROCESS, after=True),
    "the counters": Faults((RuleCounters, "add_step"), (RuleCounters, "text")),
}


class Asked:
    """A server that is asked by the names of requests."""

    def __init__(self, pool: PairPool, port: int) -> None:
        self.pool, self.port = pool, port
        self.faults = Counter[str]()
        self._next = cycle(ROUTES)
        self.expected = {name: self(name) for name in ROUTES}

    def __call__(self, name: str) -> tuple[int, str]:
        status, text = asked(self.port, *request(name))
        return status, _NEW.sub("", "" if name == "metrics" else text)

    def check_next(self, fault: object, *names: str) -> None:
        """Ask for some things at once, one more of which is another each time; all must be answered as ever."""
        wanted = [*names, *islice(self._next, len(self.pool.pairs))]
        with ThreadPoolExecutor(len(wanted)) as threads:
            for name, answer in zip(wanted, threads.map(self, wanted), strict=True):
                assert answer == self.expected[name], (fault, name)
        assert not any(map(self.pool._is_held, self.pool.pairs)), fault

    def fail(self, name: str, kind: str, number: int) -> bool:
        """Have something fail in a request and check the next ones; return whether there was so much to fail."""
        fault = FAULTS[kind]
        with fault.at(number):
            status, text = asked(self.port, *request(name))
        if not fault.happened:
            assert _NEW.sub("", text) == self.expected[name][1] or name == "metrics", (name, kind, number)
            return False
        assert status != 200 or "error" in text, (name, kind, number, text)
        assert "Traceback" not in text
        self.faults[kind] += 1
        self.check_next((name, kind, number), name)
        return True


def request(name: str) -> tuple[str, str, object]:
    path, body = ROUTES[name]
    return "GET" if body is None else "POST", path, body


@pytest.fixture(scope="module", params=[2, pytest.param(1, marks=pytest.mark.slow)])
def server(gguf, request):
    with serving_here(gguf("target"), gguf("worded"), request.param) as (_, pool, port):
        yield Asked(pool, port)


def test_a_writer_that_fails_at_any_chunk_stops_nobody_else(server):
    for name in ("completion, stream", "chat, stream", "response, stream"):
        number = 1
        while server.fail(name, "the writer", number):
            number += 1
        assert number > 3, name


@pytest.mark.slow
def test_whatever_fails_the_next_request_is_answered_as_if_it_had_not(server):
    """Faults of each kind, at each of the first calls of each request, and readers who leave after each line."""
    for kind in FAULTS:
        for name in ROUTES:
            number = 1
            while number <= MOST and server.fail(name, kind, number):
                number += 1
    for name in ROUTES:
        for lines in range(12 if "stream" in name else 1):
            leave_after(lines, server.port, *request(name))
            server.check_next((name, "left after", lines), name)
            server.faults["the reader"] += 1
        for part in (40, 120, 150):
            leave_within(part, server.port, *request(name))
            server.check_next((name, "left within", part), name)
            server.faults["the reader"] += 1
    assert {*server.faults} == {*FAULTS, "the reader"}
    assert server.faults.total() >= 500, server.faults
