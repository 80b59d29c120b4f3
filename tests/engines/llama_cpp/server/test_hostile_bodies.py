"""Bodies that no honest client sends, to every address of the server: each is refused, and none imports a module."""

import json

import pytest
from support.asgi import ask
from support.outside_module import outside_module
from support.tables import all_of

from cactus_decoding.engines.llama_cpp.models.settings import parse_gguf
from cactus_decoding.engines.llama_cpp.pairs import PairPool
from cactus_decoding.engines.llama_cpp.server.server import _GOT, _POSTED, LlamaServer

USER = {"role": "user", "content": "Hi"}
SENT = {
    "/v1/completions": {"prompt": "Hi", "max_tokens": 1},
    "/v1/chat/completions": {"messages": [USER], "max_tokens": 1},
    "/v1/responses": {"input": "Hi", "max_output_tokens": 1},
    "/tokenize": {"prompt": "Hi"},
    "/detokenize": {"tokens": [3]},
}


@pytest.fixture(scope="module")
def app(gguf):
    """The application in this process."""
    file = parse_gguf(f"{gguf('target', 'q8_0')}:context_size=512").with_threads(1)
    server = LlamaServer(PairPool.load(file, "ngram", 1, "1"), "tiny", {"rule": "lossless"}, 4)
    server.get_ready(lambda: None)
    yield server.application(None, [])
    server.stop()


def post(app, path, body):
    status, answer = ask(app, "POST", path, body)
    return status, json.loads(answer) if answer[:1] == b"{" else answer


def test_every_address_is_asked():
    assert {*SENT} == {*_POSTED}


def deep(levels):
    return json.loads("[" * levels + "]" * levels)


def called(arguments):
    return {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}


def function(parameters):
    return {"type": "function", "function": {"name": "f", "parameters": parameters}}


@all_of("levels", [250, 600])
def test_what_is_nested_deeply_is_taken_or_refused_wherever_it_stands(app, levels):
    value, text = deep(levels), "[" * levels + "]" * levels
    chat, response = SENT["/v1/chat/completions"], SENT["/v1/responses"]
    schema = {"type": "json_schema", "json_schema": {"name": "it", "schema": {"enum": value}}}
    past = {"type": "function_call", "call_id": "c", "name": "f", "arguments": text}
    for path, body in (
        *((path, SENT[path] | {name: value}) for path, kind in _POSTED.items() for name in kind.model_fields),
        *((path, SENT[path] | {name: {"a": value}}) for path, kind in _POSTED.items() for name in kind.model_fields),
        ("/v1/chat/completions", chat | {"messages": [USER, called(text)]}),
        ("/v1/chat/completions", chat | {"messages": [USER, called(value)]}),
        ("/v1/chat/completions", chat | {"messages": [USER | {"notes": value}]}),
        ("/v1/chat/completions", chat | {"tools": [function({"a": value})]}),
        ("/v1/chat/completions", chat | {"tools": [function({"enum": value})], "tool_choice": "required"}),
        ("/v1/chat/completions", chat | {"response_format": schema}),
        ("/v1/responses", response | {"input": [USER, past]}),
        ("/v1/responses", response | {"metadata": {"a": value}, "stream": True}),
        ("/v1/responses", response | {"text": {"format": {"type": "text", "a": value}}}),
        ("/tokenize", {"messages": [USER, called(text)]}),
    ):
        status, answer = post(app, path, body)
        assert status in ((200, 400) if levels < 256 else (400,)), (path, [*body], answer)
        if levels > 256:
            assert "may nest 256 objects and lists" in answer["error"]["message"]


@all_of("half", ["\ud800", "a\udfffb"])
def test_half_of_a_surrogate_pair_is_refused_wherever_it_stands(app, half):
    for path, body in (
        *((path, SENT[path] | {name: half}) for path, kind in _POSTED.items() for name in kind.model_fields),
        *((path, SENT[path] | {half: 1}) for path in SENT),
        ("/v1/chat/completions", {"messages": [USER | {half: 1}], "max_tokens": 1}),
        ("/v1/chat/completions", {"messages": [USER, called(json.dumps({"a": half}))], "max_tokens": 1}),
    ):
        status, answer = post(app, path, body)
        assert (status, "half of a surrogate pair" in answer["error"]["message"]) == (400, True), (path, answer)


def test_a_body_that_breaks_off_is_no_failure(app):
    for path in SENT:
        assert ask(app, "POST", path, b'{"a": ' + b" " * 2**20, cut=True)[0] == 400


def test_no_body_imports_a_module(app, tmp_path, monkeypatch):
    module = outside_module(tmp_path, monkeypatch)
    refused = set()
    for path, body in SENT.items():
        for name in _POSTED[path].model_fields:
            for value in (module.spelling, [module.spelling], {"a": module.spelling}, {"rule": module.spelling}):
                status, answer = post(app, path, body | {name: value})
                assert status in (200, 400), (path, name, answer)
                assert not module.was_imported, (path, name)
                if status == 400 and "is not taken from here" in answer["error"]["message"]:
                    refused.add((path, name))
    rules = {(path, "acceptance_rule") for path in ("/v1/completions", "/v1/chat/completions", "/v1/responses")}
    assert refused == rules
    for path in _GOT:
        assert ask(app, "GET", path.replace("{model}", module.spelling))[0] in (200, 404)
    assert not module.was_imported
