"""Requests of every address with fields that nobody would send: each is answered, and the server goes on."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.client_requests import CHATS, TEXTS
from support.llama_server import serving

WORDS = st.text(max_size=20) | st.sampled_from(["\0", "\ud800", "{" * 300, "a" * 30_000, "<tool_call>", "\U0001f600"])
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from([2**63, -1, 1e308]) | WORDS
VALUES = st.recursive(SCALARS, lambda part: st.lists(part, max_size=4) | st.dictionaries(WORDS, part, max_size=4))
RESPONSES = [
    {"input": "Hi", "max_output_tokens": 3},
    {"input": [{"role": "user", "content": "Hi"}], "tools": [], "text": {}, "stream": True},
]
BODIES = {
    "/v1/chat/completions": [*CHATS.values()],
    "/v1/completions": [*TEXTS.values()],
    "/v1/responses": RESPONSES,
    "/tokenize": [{"prompt": "Hi"}, {"messages": [{"role": "user", "content": "Hi"}]}],
    "/detokenize": [{"tokens": [1, 2, 3]}],
}


@pytest.fixture(scope="module")
def server(gguf):
    """One whose vocabulary splits texts by recursion, of the default stack's depth elsewhere."""
    source = gguf("target", "q8_0")
    path = source.with_name("fuzzed.gguf")
    path.write_bytes(source.read_bytes().replace(b"gpt-2", b"afmoe", 1))
    with serving(f"{path}:context_size=256", "--draft", "ngram", "--threads", "1", "--port", "0") as running:
        yield running


def inside(draw, value):
    if isinstance(value, dict) and value and draw(st.booleans()):
        key = draw(st.sampled_from([*value]))
        return value | {key: inside(draw, value[key])}
    if isinstance(value, list) and value and draw(st.booleans()):
        place = draw(st.integers(0, len(value) - 1))
        return [*value[:place], inside(draw, value[place]), *value[place + 1 :]]
    return draw(VALUES)


@st.composite
def requests(draw):
    path = draw(st.sampled_from([*BODIES]))
    body = draw(st.sampled_from(BODIES[path]))
    if "max_tokens" in body:
        body = body | {"max_tokens": 3}
    for _ in range(draw(st.integers(1, 3))):
        body = inside(draw, body)
        if not isinstance(body, dict):
            break
    return path, body


@pytest.mark.slow
def test_no_body_ends_the_server_or_is_answered_with_a_trace(server):
    described = server.ask("GET", "/openapi.json")[1]["paths"]
    assert {*BODIES} == {path for path, methods in described.items() if "post" in methods}

    @settings(max_examples=800, derandomize=True, deadline=None, database=None, suppress_health_check=[*HealthCheck])
    @given(requests())
    def ask(request):
        path, body = request
        status, answer = server.ask("POST", path, json.dumps(body).encode())
        assert status in (200, 400), (path, str(body)[:500], answer)
        if status == 400:
            error = answer["error"]
            assert {*error} == {"message", "type", "param", "code"}
            assert "\n" not in error["message"]
            assert len(error["message"]) < 2_000

    ask()
    assert server.process.poll() is None
    assert server.ask("GET", "/health") == (200, {"status": "ok"})
    assert "Traceback" not in server.logged()
