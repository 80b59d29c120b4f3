"""What nobody should send to a real server, grammars above all: none ends it, each is answered or refused."""

import json
import threading
from contextlib import closing

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from support import client_requests as sent
from support.llama_server import events_of, serving

CHATS = "/v1/chat/completions"
LONG = {"type": "string", "maxLength": 20_000}
PERSON = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
DOUBLING = {
    f"d{i}": {"properties": {name: {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}]} for name in "abcd"}} for i in range(20)
} | {"d20": {"type": "integer"}}


def chained(rules: int, form: str) -> str:
    """Return rules of which each names the next, the last of which is a letter."""
    lines = [f"r{i} ::= {form.replace('NEXT', f'r{i + 1}')}" for i in range(rules)]
    return "\n".join(["root ::= r0", *lines, f'r{rules} ::= "a"'])


def nested(depth: int) -> dict:
    schema: dict = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


GRAMMARS = {
    "open parentheses": "root ::= " + "(" * 100_000,
    "visits that double": chained(40, "NEXT | NEXT"),
    "stacks that double": chained(40, 'NEXT "x" | NEXT "y"'),
    "mutual left recursion": 'root ::= a "x" | "b"\na ::= root "c"',
    "hidden left recursion": 'root ::= a root "x" | "y"\na ::= b\nb ::= "" | "q"',
    "a hundred thousand": "root ::= " + " | ".join(f'"{i}"' for i in range(100_000)),
    "a huge text": 'root ::= "' + "a" * 150_000 + '"',
    "a huge count": 'root ::= "a"{1,99999999999999}',
    "a count without end": 'root ::= "a"{1,' + "9" * 5_000 + "}",
    "counts in counts": 'root ::= (("a"{1,600} "b"){1,600}){1,600}',
    "repetitions": 'root ::= "a"{0,20000}',
    "ambiguous nesting": 'root ::= [ a-z] root "b" | [ a-z] root "c" | "d"',
    "tokens by number": "root ::= <[10]>",
    "an unknown rule": 'root ::= foo "a"',
    "a NUL": 'root ::= "a\0b"',
    "an open text": 'root ::= "€',
    "no root": 'foo ::= "a"',
    "counts turned round": 'root ::= "a"{5,2} "b"',
}
SCHEMAS = {
    "maxLength": LONG,
    "maxItems": {"type": "array", "items": PERSON, "maxItems": 20_000},
    "a pattern": {"type": "string", "pattern": "^a{0,20000}$"},
    "a deep pattern": {"type": "string", "pattern": "^" + "(" * 5_000 + "a" + ")" * 5_000 + "$"},
    "counts in patterns": {"type": "string", "pattern": "^((a{1,1000}){1,1000}){1,1000}$"},
    "many values": {"enum": list(range(5_000))},
    "references that double": {"$defs": DOUBLING, "properties": {"a": {"$ref": "#/$defs/d0"}}},
    "a reference to itself": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}},
    "depth": nested(150),
    "too much depth": nested(250),
    "no schema at all": {"type": "object", "properties": [1, 2]},
    "a keyword": {"type": "array", "uniqueItems": True},
}


def json_schema(schema, **more):
    return {"type": "json_schema", "json_schema": {"name": "it", "schema": schema} | more}


def tool(name, parameters):
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


@pytest.fixture(scope="module")
def server(gguf):
    """One whose vocabulary splits texts by recursion, of the default stack's depth elsewhere."""
    source = gguf("target", "q8_0")
    path = source.with_name("fuzzed.gguf")
    path.write_bytes(source.read_bytes().replace(b"gpt-2", b"afmoe", 1))
    options = ("--draft", "ngram", "--threads", "1", "--port", "0", "--parallel", "2")
    with serving(f"{path}:context_size=512", *options) as running:
        running.ask("POST", CHATS, {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1})  # it is ready
        yield running


def chat(server, **body):
    usual = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 60, "seed": 1, "temperature": 1.3}
    return server.ask("POST", CHATS, usual | body)


@pytest.mark.slow
def test_no_request_ends_the_server(server):
    """Grammars that the compiler's own tests do not try, and some of those that they do."""
    for name, text in GRAMMARS.items():
        status, answer = server.complete(prompt="Hi", max_tokens=8, grammar=text)
        assert status in (200, 400), (name, answer)
        if status == 400:
            message = answer["error"]["message"]
            assert "the grammar" in message or "the constraint" in message, (name, message)
            assert len(message) < 300
    for name, schema in SCHEMAS.items():
        status, answer = chat(server, response_format=json_schema(schema), max_tokens=100)
        assert status in (200, 400), (name, answer)
        if status == 400:
            message = answer["error"]["message"]
            assert "response_format" in message or "the constraint" in message or "nest" in message, (name, message)
            assert len(message) < 300
        elif answer["choices"][0]["finish_reason"] == "stop":
            Draft202012Validator(schema).validate(json.loads(answer["choices"][0]["message"]["content"]))
    assert server.process.poll() is None
    assert server.ask("GET", "/health") == (200, {"status": "ok"})


@pytest.mark.slow
def test_other_requests_with_grammars_too_are_answered_while_one_is_compiled(server):
    answers = []
    slow = threading.Thread(
        target=lambda: answers.append(server.complete(prompt="Hi", max_tokens=8, grammar=chained(14_500, "NEXT")))
    )
    slow.start()
    answered = 0
    while slow.is_alive():
        assert server.ask("GET", "/health")[0] == 200
        assert server.complete(prompt="Hi", max_tokens=2, grammar='root ::= "a" | "b"')[0] == 200
        answered += 1
    [(status, answer)] = answers
    assert status == 400
    assert answer["error"]["message"] == "cannot read the grammar: it takes longer than 5 seconds to compile"
    assert answered >= 3


@pytest.mark.slow
def test_expressions_and_grammars_by_every_key(server):
    digits = {"type": "grammar", "syntax": "regex", "definition": "[0-9]{3}"}
    for asked in (
        {"grammar": "root ::= [0-9] [0-9] [0-9]"},
        {"guided_regex": "[0-9]{3}"},
        {"response_format": digits},
        {"structured_outputs": {"regex": "[0-9]{3}"}},
        {"structured_outputs": {"grammar": "root ::= [0-9]{3}"}},
        {"structured_outputs": {"json": {"type": "integer", "minimum": 100, "maximum": 999}}},
        {"response_format": json_schema({"type": "integer", "minimum": 100, "maximum": 999}), "n": 2},
    ):
        status, answer = server.complete(prompt="Hi", max_tokens=8, **asked)
        assert status == 200, answer
        for choice in answer["choices"]:
            assert (len(choice["text"]), choice["text"].isdecimal()) == (3, True)
    for asked, said in (
        ({"structured_outputs": {"choice": ["a", "\ud800"]}}, "half of a surrogate pair"),
        ({"structured_outputs": {"choices": ["a"]}}, "structured_outputs must have one of"),
        ({"guided_regex": "(a"}, "cannot read guided_regex: "),
        ({"guided_regex": "a", "grammar": "b"}, "exclude each other"),
        ({"response_format": digits | {"syntax": "ebnf"}}, "the syntax of response_format must be"),
    ):
        status, answer = server.complete(prompt="Hi", max_tokens=8, **asked)
        assert (status, said in answer["error"]["message"]) == (400, True), answer


@pytest.mark.slow
def test_forced_calls_that_are_cut_say_so_and_a_broken_tool_is_named(server):
    tools = [tool(f"tool{i}", PERSON) for i in range(31)]
    status, answer = chat(server, tools=tools, tool_choice="required", max_tokens=200, temperature=0.2)
    assert status == 200
    for choice in ("required", {"type": "function", "function": {"name": "tool3"}}):
        status, answer = chat(server, tools=tools, tool_choice=choice, max_tokens=4)
        assert (status, answer["choices"][0]["finish_reason"]) == (200, "length")
        body = {"messages": [{"role": "user", "content": "Hi"}], "tools": tools, "tool_choice": choice, "max_tokens": 4}
        with closing(server.connect("POST", CHATS, body | {"stream": True, "seed": 1})) as connection:
            events = [*events_of(connection.getresponse())]
        assert events[-1]["choices"][0]["finish_reason"] == "length"
    for broken, said in (
        ({"type": "object", "properties": {"a": {"not": {"const": 1}}}}, "not at #/properties/a is not supported"),
        ({"type": "object", "properties": {"a": {"type": "strin"}}}, "type at #/properties/a must be one of array"),
    ):
        tools[17] = tool("tool17", broken)
        status, answer = chat(server, tools=tools, tool_choice="required")
        assert status == 400
        assert f"cannot read the JSON schema of the tool 'tool17': {said}" in answer["error"]["message"]
        assert len(answer["error"]["message"]) < 200
    # references of a tool lead into its own schema
    node = {
        "type": "object",
        "properties": {"n": {"$ref": "#/$defs/n"}},
        "$defs": {"n": {"enum": [7]}},
        "required": ["n"],
    }
    status, answer = chat(server, tools=[tool("a", node), tool("b", node)], tool_choice="required", max_tokens=100)
    calls = answer["choices"][0]["message"]["tool_calls"]  # perhaps several: one is required, and more are allowed
    assert calls
    assert all(json.loads(call["function"]["arguments"]) == {"n": 7} for call in calls)


@pytest.mark.slow
def test_a_constraint_that_cannot_go_on_ends_its_response_by_a_sentence(server):
    """A mask is too much work after some dozens of tokens, which is not found before."""
    names = [f"r{i}" for i in range(2_500)]
    rules = [f'{name} ::= "x" {name} "y" | "{name}"' for name in names]
    grammar = "\n".join(["root ::= [ab]{60} rest", "rest ::= " + " | ".join(names), *rules])
    said = "the constraint gave up after"
    status, answer = server.complete(prompt="Hi", max_tokens=100, grammar=grammar)
    assert (status, said in answer["error"]["message"]) == (400, True), answer
    with closing(server.connect("POST", "/v1/completions", {"prompt": "Hi", "max_tokens": 100, "grammar": grammar,
                                                            "stream": True})) as connection:  # fmt: skip
        *parts, last = events_of(connection.getresponse())
    assert set("".join(part["choices"][0]["text"] for part in parts)[:60]) == {"a", "b"}
    assert (said in last["error"]["message"], last["error"]["type"]) == (True, "invalid_request_error")
    assert server.complete(prompt="Hi", max_tokens=4)[0] == 200


WORDS = st.text(max_size=20) | st.sampled_from(["\0", "\ud800", "{" * 300, "a" * 30_000, "<tool_call>", "\U0001f600"])
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from([2**63, -1, 1e308]) | WORDS
VALUES = st.recursive(SCALARS, lambda part: st.lists(part, max_size=4) | st.dictionaries(WORDS, part, max_size=4))
RESPONSES = [
    {"input": "Hi", "max_output_tokens": 3},
    {"input": [{"role": "user", "content": "Hi"}], "tools": [], "text": {}, "stream": True},
]
BODIES = {
    "/v1/chat/completions": [*sent.CHATS.values()],
    "/v1/completions": [*sent.TEXTS.values()],
    "/v1/responses": RESPONSES,
    "/tokenize": [{"prompt": "Hi"}, {"messages": [{"role": "user", "content": "Hi"}]}],
    "/detokenize": [{"tokens": [1, 2, 3]}],
}


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
