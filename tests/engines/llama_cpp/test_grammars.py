"""Grammars and schemas from clients: none ends the process, and each is answered or refused by a sentence."""

from __future__ import annotations

import json

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from llama_cpp import llama_grammar
from support.grammar_child import TOKENS, walk_in_child
from support.llama_server import serving
from support.tables import all_of

from cactus_decoding.engines.llama_cpp.gbnf import MAX_WAYS, Grammar
from cactus_decoding.engines.llama_cpp.schemas import schema_grammar


def chained(rules: int, form: str) -> str:
    """Return rules of which each names the next, the last of which is a letter."""
    lines = [f"r{i} ::= {form.replace('NEXT', f'r{i + 1}')}" for i in range(rules)]
    return "\n".join(["root ::= r0", *lines, f'r{rules} ::= "a"'])


REFUSED = {
    "parentheses": ("root ::= " + "(" * 30_000 + '"a"' + ")" * 30_000, "nest 200 parentheses"),
    "open parentheses": ("root ::= " + "(" * 100_000, "nest 200 parentheses"),
    "a long chain": (chained(20_000, "NEXT"), "characters"),
    "a chain": (chained(1_001, "NEXT"), "1,000 rules may begin with each other"),
    "visits that double": (chained(40, "NEXT | NEXT"), "begin a rule in"),
    "stacks that double": (chained(40, 'NEXT "x" | NEXT "y"'), "begin a rule in"),
    "left recursion": ('root ::= root "a" | "b"', "begin with itself"),
    "mutual left recursion": ('root ::= a "x" | "b"\na ::= root "c"', "begin with itself"),
    "hidden left recursion": ('root ::= a root "x" | "y"\na ::= b\nb ::= "" | "q"', "begin with itself"),
    "many alternatives": ("root ::= " + " | ".join(f'"{i}"' for i in range(5_000)), "ways"),
    "a hundred thousand": ("root ::= " + " | ".join(f'"{i}"' for i in range(100_000)), "characters"),
    "a huge text": ('root ::= "' + "a" * 150_000 + '"', "100,000 characters, ranges"),
    "a huge set": ("root ::= [" + "a" * 150_000 + "]", "100,000 characters, ranges"),
    "a huge count": ('root ::= "a"{1,99999999999999}', "1000 times"),
    "a count without a word": ('root ::= "a"{1,' + "9" * 5_000 + "}", "1000 times"),
    "counts turned round": ('root ::= "a"{5,2} "b"', "smaller number first"),
    "counts in counts": ('root ::= (("a"{1,60} "b"){1,60})', "repetitions within repetitions"),
    "plus after plus": ('root ::= "a"' + "+" * 3_000, "100,000 characters, ranges"),
    "nothing repeated": ('root ::= ""* "a"', "must follow something"),
    "ambiguous nesting": ('root ::= [ a-z] root "b" | [ a-z] root "c" | "d"', "ambiguous"),
    "ambiguous repetition": ("root ::= ([ a-z] | [ a-z] | [ a-z])*", "ambiguous"),
    "ambiguous ends": ('root ::= "a" root root "x" | "a"', "ambiguous"),
    "ambiguous after a text": ('root ::= "' + "x" * 40 + '" s\ns ::= " " s "b" | " " s "c" | "d"', "ambiguous"),
    "ambiguous in one place": (
        "root ::= "
        + " | ".join(f'"q" d{i}' for i in range(150))
        + ' | "z" s\n'
        + "\n".join(f'd{i} ::= "b" d{i} "{i}" | "x" d{i}' for i in range(150))
        + '\ns ::= " " s "b" | " " s "c" | "d"',
        "ambiguous",
    ),
    "many rules": (chained(900, '"a" NEXT') + "\n" + "\n".join(f'x{i} ::= "a"' for i in range(5_200)), "6,000 rules"),
    "a token within a word": ('root ::= "a" !<[5]>', "may not name tokens"),
    "an unknown rule": ('root ::= foo "a"', "no rule named foo"),
    "no root": ('foo ::= "a"', "rule named root"),
    "a NUL": ('root ::= "a\0b"', "NUL"),
    "half a pair": ('root ::= "\ud800"', "surrogate"),
    "an unknown escape": (r'root ::= "\q"', "cannot be read at"),
    "an open text": ('root ::= "€', "cannot be read at"),
    "a huge token": ("root ::= <[99999999999]>", "may not name tokens"),
    "words": ("frob", "cannot be read"),
}
"""Of these, llama.cpp alone died of some, took minutes for others, and read the rest otherwise than it says."""
READ = {
    "parentheses in texts": 'root ::= "' + "(" * 300 + '" [' + "(" * 300 + "]{0,3} # " + "(" * 300,
    "as deep as allowed": "root ::= " + "(" * 200 + '"a"' + ")" * 200,
    "as often as allowed": 'root ::= [a-z]{0,1000} "."',
    "as long a chain": chained(900, "NEXT"),
    "a list of words": "root ::= " + " | ".join(f'"{i}"' for i in range(1_500)),
    "spaces that may be none": 'root ::= ws* "a" ws+ "b"\nws ::= [ \\t]*',
    "several lines": 'root ::= (\n  "a" |\n  "b"\n) |\n "c"\r\n# the end',
    **{name: text for name, text in vars(llama_grammar).items() if name.endswith("_GBNF")},
}


@all_of("case", REFUSED)
def test_a_grammar_beyond_a_bound_is_refused_by_a_sentence(case):
    text, said = REFUSED[case]
    with pytest.raises(ValueError, match=said) as error:
        Grammar(text)
    assert len(str(error.value)) < 200
    assert "\n" not in str(error.value)


def test_what_passes_the_bounds_is_read_by_llama_cpp(gguf):
    walked = walk_in_child(gguf("target", "q8_0"), [*READ.values()], 120)
    assert dict(zip(READ, walked, strict=True)) == {name: walked[i] for i, name in enumerate(READ) if walked[i]}


@pytest.mark.parametrize(
    ("text", "piece", "said"),
    [
        ('root ::= "(" root ")" | "x"', b"(" * 20, "rules open within each other"),
        (
            'root ::= "abcdefghij" root "1" | "abcdefghij" root "2" | "x"',
            b"abcdefghij",
            f"more than {MAX_WAYS:,} ways",
        ),
    ],
)
def test_a_response_is_followed_so_that_what_is_open_stays_bounded(text, piece, said):
    grammar = Grammar(text)

    def respond():
        state = grammar.start()
        for _ in range(100):
            state = grammar.after(state, piece)

    with pytest.raises(ValueError, match=said):
        respond()


def test_characters_may_be_split_over_tokens():
    grammar = Grammar('root ::= "a€😀" "b"')
    state = grammar.start()
    for piece in ("a€".encode()[:2], "€".encode()[1:], "😀".encode()[:3], "😀".encode()[3:], b"b"):
        state = grammar.after(state, piece)
    assert state.nodes == (0,)  # the empty stack: it may end


SYMBOLS = [
    "a", '"a"', '" "', '"gr"', '"€"', '""', "[a-z ]", "[^a]", "[]", ".", "<[5]>", "(", ")", "(", ")", "|", "*", "+",
    "?", "{2}", "{0,3}", "{3,}", "{0}", "\n", " ", "::=", "#", "\\", '"', "[", "]", "\na ::= ", "{",
]  # fmt: skip
ITEMS = st.sampled_from(['"a"', '" "', '"gr"', '"€"', '""', "[a-z ]", "[^a]", ".", "[ -~]", "a", "b"])
SEQUENCES = st.recursive(
    ITEMS,
    lambda inner: st.lists(
        st.tuples(inner, st.sampled_from(["", "", "*", "+", "?", "{2}", "{0,3}", "{2,}"])), min_size=1, max_size=3
    ).flatmap(
        lambda items: st.sampled_from([" ", " | "]).map(
            lambda joint: "(" + joint.join(item + times for item, times in items) + ")"
        )
    ),
    max_leaves=8,
)
GRAMMARS = st.one_of(
    st.lists(st.sampled_from(SYMBOLS), max_size=20).map(lambda symbols: "root ::= " + " ".join(symbols)),
    st.tuples(SEQUENCES, SEQUENCES, ITEMS).map(
        lambda three: f'root ::= {three[0]}\na ::= {three[1]}\nb ::= "b" {three[2]}'
    ),
)


@pytest.mark.slow
@given(st.lists(GRAMMARS, min_size=100, max_size=100))
@settings(max_examples=5, deadline=None, derandomize=True, phases=(Phase.generate,))
def test_no_grammar_that_passes_the_bounds_ends_a_process(gguf, grammars):
    walked = walk_in_child(gguf("target", "q8_0"), grammars, 300)
    assert max(each or 0 for each in walked) <= TOKENS


LONG = {"type": "string", "maxLength": 20_000}
PERSON = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
NODE = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}, "n": {"type": "integer"}}}
DOUBLING = {
    f"d{i}": {"properties": {name: {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}]} for name in "abcd"}} for i in range(20)
} | {"d20": {"type": "integer"}}
SCHEMAS_REFUSED = {
    "maxLength": (LONG, "maxLength must be an integer from 0 to 1000 here, but is 20000"),
    "maxLength within": ({"type": "object", "properties": {"text": LONG}}, "maxLength of text must be"),
    "maxItems": ({"type": "array", "items": PERSON, "maxItems": 20_000}, "maxItems must be"),
    "a pattern": ({"type": "string", "pattern": "^a{0,20000}$"}, "pattern may repeat something 1000 times"),
    "a deep pattern": ({"type": "string", "pattern": "^" + "(" * 5_000 + "a" + ")" * 5_000 + "$"}, "nests too deeply"),
    "turned round": ({"type": "string", "minLength": 5, "maxLength": 2}, "maxLength must be at least 5, which"),
    "a text as a count": ({"type": "string", "maxLength": "x"}, "maxLength must be an integer"),
    "many properties": ({"properties": {str(i): PERSON for i in range(2_000)}}, "200 properties, but one has 2000"),
    "many values": ({"enum": list(range(5_000))}, "ways"),
    "references that double": ({"$defs": DOUBLING, "properties": {"a": {"$ref": "#/$defs/d0"}}}, "may"),
    "a reference to itself": ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, "begin with itself"),
    "all of itself": (
        {"properties": {"a": {"allOf": [{"$ref": "#/$defs/a"}]}}, "$defs": {"a": {"properties": {"a": {"allOf": [
            {"$ref": "#/$defs/a"}]}}}}}, "within itself",
    ),
    "the whole": ({"$ref": "#"}, "Unsupported ref #"),
    "false": ({"type": "object", "properties": {"a": False}}, "a must be a schema that allows something"),
    "an unknown type": ({"type": "object", "properties": {"a": {"type": "strin"}}}, "a must have a type that is known"),
    "no schema at all": ({"type": "object", "properties": [1, 2]}, "a part that is not known"),
    "a pattern that is none": ({"type": "string", "pattern": r"^\d+$"}, "cannot be written as a grammar"),
}  # fmt: skip
SCHEMAS_READ = {
    "maxLength": LONG | {"maxLength": 1_000},
    "maxItems": {"type": "array", "items": PERSON, "maxItems": 1_000},
    "a pattern": {"type": "string", "pattern": "^(ab|c){2,1000}$"},
    "true": {"type": "object", "properties": {"a": True}, "required": ["a"]},
    "a reference on top": {"$ref": "#/$defs/node", "$defs": {"node": NODE}},
    "many properties": {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(200)}},
    "a constant like options": {"const": "(a (a)?"},
    "any object": {"type": "object"},
}


@all_of("case", SCHEMAS_REFUSED)
def test_a_schema_beyond_a_bound_is_refused_by_a_sentence_that_names_the_field(case):
    schema, said = SCHEMAS_REFUSED[case]
    with pytest.raises(ValueError, match=r"^cannot read the JSON schema of it: ") as error:
        schema_grammar("the JSON schema of it", schema)
    assert said in str(error.value)
    assert len(str(error.value)) < 300


def test_schemas_within_the_bounds_are_read_by_llama_cpp(gguf):
    texts = [schema_grammar("it", schema).text for schema in SCHEMAS_READ.values()]
    assert all(walk_in_child(gguf("target", "q8_0"), texts, 120))


def test_options_within_each_other_become_a_repetition_and_nothing_else_does():
    assert '(char){0,1000} "' in schema_grammar("it", SCHEMAS_READ["maxLength"]).text
    assert "{0,999})?" in schema_grammar("it", SCHEMAS_READ["maxItems"]).text
    assert r'root ::= "\"(a (a)?\""' in schema_grammar("it", SCHEMAS_READ["a constant like options"]).text


def json_schema(schema):
    return {"type": "json_schema", "json_schema": {"name": "it", "schema": schema}}


def tool(name, parameters):
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


@pytest.mark.slow
def test_no_request_ends_the_server(gguf):
    """The server answers after each, and what it does not refuse is JSON."""
    chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 200, "seed": 1}
    broken = [tool(f"tool{i}", PERSON if i != 17 else {"type": "object", "properties": {"a": LONG}}) for i in range(31)]
    with serving(
        f"{gguf('target', 'q8_0')}:context_size=512", "--draft", "ngram", "--threads", "1", "--port", "0"
    ) as server:
        for text, said in REFUSED.values():
            status, answer = server.complete(prompt="Hi", max_tokens=8, grammar=text)
            assert (status, said in answer["error"]["message"]) == (400, True), answer
        for schema, said in SCHEMAS_REFUSED.values():
            status, answer = server.ask("POST", "/v1/chat/completions", chat | {"response_format": json_schema(schema)})
            assert (status, said in answer["error"]["message"]) == (400, True), answer
            assert "response_format" in answer["error"]["message"]
        asked = chat | {"tools": broken, "tool_choice": "required"}
        status, answer = server.ask("POST", "/v1/chat/completions", asked)
        assert status == 400
        assert "of the tool 'tool17': maxLength of a must be" in answer["error"]["message"]
        assert len(answer["error"]["message"]) < 200
        for schema in SCHEMAS_READ.values():
            status, answer = server.ask("POST", "/v1/chat/completions", chat | {"response_format": json_schema(schema)})
            assert status == 200, answer
            [choice] = answer["choices"]
            if choice["finish_reason"] == "stop":
                json.loads(choice["message"]["content"])
        assert server.process.poll() is None
        assert server.ask("GET", "/health") == (200, {"status": "ok"})
