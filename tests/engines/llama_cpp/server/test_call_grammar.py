"""What may be written around calls and in them, for each format, and what a model writes that tries everything."""

import json
from collections import Counter

import jsonschema
import pytest
import torch
from support.constraints import BYTES, small_vocabulary
from support.tables import all_of

from cactus_decoding.core.constraints.base import as_grammar
from cactus_decoding.engines.llama_cpp.server.call_grammar import CallMarks
from cactus_decoding.engines.llama_cpp.server.tools import Tools
from cactus_decoding.engines.openai.tool_calls import CallReader
from cactus_decoding.engines.openai.tool_formats import (
    HERMES,
    LLAMA,
    MISTRAL,
    MISTRAL_NAMED,
    QWEN_XML,
    TOOL_CALL_FORMATS,
)

N = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]}
MIXED = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "kind": {"enum": ["left", "right"]},
        "number": {"type": "integer", "minimum": 0, "maximum": 99},
        "place": {"anyOf": [{"$ref": "#/$defs/Place"}, {"type": "null"}]},
        "short": {"type": "string", "maxLength": 3},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    },
    "required": ["text", "number"],
    "$defs": {"Place": {"type": "object", "properties": {"x": {"type": "boolean"}}, "required": ["x"]}},
}


def tool(name, parameters):
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TOOLS = [tool("add", N), tool("sub", N)]
ALL = [*TOOLS, tool("put", MIXED), tool("now", None)]
LETTERS = small_vocabulary(BYTES)


def follows(grammar, text):
    """Return which letters may come after a text, and whether it may end; None where it is not allowed itself."""
    constraint = LETTERS.constraint(grammar)
    allowed = constraint.allowed([*text.encode()])
    if allowed is None:
        return None
    ids = set(allowed.nonzero()[:, 0].tolist()) - LETTERS.ends
    return {chr(i) for i in ids}, constraint.may_end([*text.encode()])


CALLS = {
    HERMES.name: ('<tool_call>\n{"name": "add", "arguments": {"n": ', "}}\n</tool_call>"),
    QWEN_XML.name: ("<tool_call>\n<function=add>\n<parameter=n>\n", "\n</parameter>\n</function>\n</tool_call>"),
    MISTRAL.name: ('[TOOL_CALLS][{"name": "add", "arguments": {"n": ', "}}]"),
    MISTRAL_NAMED.name: ('[TOOL_CALLS]add[ARGS]{"n": ', "}"),
    LLAMA.name: ('<|python_tag|>{"name": "add", "parameters": {"n": ', "}}"),
}


@all_of("parallel, written", [(parallel, each) for parallel in (True, False) for each in TOOL_CALL_FORMATS])
def test_text_is_free_up_to_a_mark_and_a_call_after_it(parallel, written):
    grammar = Tools.of({"tools": TOOLS, "parallel_tool_calls": parallel}).grammar(CallMarks(written, {}), None)
    begun, ended = CALLS[written.name]
    free = follows(grammar, "1 < 2: {")
    assert len(free[0]) > 50
    assert free[1]
    for before in ("", "Well. "):
        assert follows(grammar, before + begun) == ({"1", "2"}, False)
        assert follows(grammar, f"{before}{begun}3") is None
    name = begun[: begun.index("add")]
    assert follows(grammar, name) == ({"a", "s"}, False)
    after, may_end = follows(grammar, f"{begun}1{ended}")
    assert may_end
    if written in (MISTRAL, LLAMA):  # of which one mark stands for several calls
        assert (after == set()) == (written is MISTRAL or not parallel)
        assert (follows(grammar, f"{begun}1{ended[:2]}{written.between}") is not None) == parallel
    else:
        assert (after == set()) == (not parallel)


UNMARKED = (
    'So {"name": "add", "arguments": {"n": ',
    '```json\n{\n  "name" : "add",\n  "parameters":\n{"n": ',
    '{"name": "{"name": "sub", "arguments": {"n": ',
    '{"name": "Bob"} {"name": "add", "arguments": {"n": ',
)


@all_of("written, begun", [(each, text) for each in (*TOOL_CALL_FORMATS, None) for text in UNMARKED])
def test_json_that_names_a_function_is_a_call_without_a_mark_too(written, begun):
    marks = CallMarks(written, {})
    grammar = Tools.of({"tools": TOOLS}).grammar(marks, None)
    assert follows(grammar, begun) == ({"1", "2"}, False)
    assert len(follows(grammar, f"{begun}1}}}}")[0]) > 50
    free = Tools.of({"tools": TOOLS, "unmarked_tool_calls": False}).grammar(marks, None)
    assert len(follows(free, begun)[0]) > 50


def test_a_mark_that_is_a_token_may_be_spelled_as_text():
    """It is read as a mark however it is written."""
    grammar = Tools.of({"tools": TOOLS}).grammar(CallMarks(HERMES, {"<tool_call>": 255}), None)
    assert follows(grammar, "So <tool_call>") == ({"\n"}, False)


def test_forced_calls_between_marks_and_answers_of_a_form_beside_them():
    tools, marks = Tools.of({"tools": TOOLS, "tool_choice": "required"}), CallMarks(HERMES, {})
    called = '<tool_call>\n{"name": "add", "arguments": {"n": 1}}\n</tool_call>'
    forced = tools.grammar(marks, None)
    assert follows(forced, "") == ({"<"}, False)
    assert follows(forced, called) == ({"\n"}, True)
    form = as_grammar({"type": "json_schema", "json_schema": {"schema": {"enum": [7, 8]}}})
    either = Tools.of({"tools": TOOLS}).grammar(marks, form)
    assert follows(either, "") == ({"<", "7", "8"}, False)
    assert follows(either, called) == ({"\n"}, True)
    assert follows(either, "7") == (set(), True)
    # what nobody asked to be strict, and is not supported, need be JSON only
    vague = tool("add", {"properties": {}, "uniqueItems": True})
    text = '<tool_call>\n{"name": "add", "arguments": '
    assert follows(Tools.of({"tools": [vague]}).grammar(marks, None), text) == ({"{"}, False)
    for strict in (
        {"tools": [vague], "tool_choice": "required"},
        {"tools": [TOOLS[0], {"function": {**vague["function"], "strict": True}}]},
    ):
        with pytest.raises(ValueError, match="the JSON schema of the tool 'add': uniqueItems at #"):
            Tools.of(strict).grammar(marks, None)


def test_arguments_are_an_object_whatever_the_schema_says():
    text = '{"name": "odd", "arguments": '
    for schema in ({"properties": {"a": {}}}, {"anyOf": [{"properties": {"a": {}}}, {}]}, {"type": "array"}):
        auto = Tools.of({"tools": [tool("odd", schema)]}).grammar(CallMarks(HERMES, {}), None)
        assert follows(auto, f"<tool_call>\n{text}") == ({"{"}, False)
        assert follows(auto, f"So {text}") == ({"{"} | {*" \t\n\r"}, False)
        forced = Tools.of({"tools": [tool("odd", schema)], "tool_choice": "required"})
        if "type" in schema:
            with pytest.raises(ValueError, match="the tool 'odd' must be of type object, but is 'array'"):
                forced.grammar(CallMarks(HERMES, {}), None)
        else:
            assert follows(forced.grammar(CallMarks(HERMES, {}), None), "") == ({"{"}, False)


def test_only_allowed_tools_are_called():
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{"function": {"name": "sub"}}]}}
    tools = Tools.of({"tools": TOOLS, "tool_choice": choice})
    assert [each["function"]["name"] for each in tools.described] == ["add", "sub"]
    assert follows(tools.grammar(CallMarks(HERMES, {}), None), '<tool_call>\n{"name": "') == ({"s"}, False)
    choice["allowed_tools"]["mode"] = "required"
    assert Tools.of({"tools": TOOLS, "tool_choice": choice}).forced == (TOOLS[1]["function"],)


NONE = (None, {}, {"type": "object"}, {"type": "object", "properties": {}}, {"additionalProperties": False})


@all_of("parameters", NONE)
def test_a_function_without_parameters_is_called_with_none(parameters):
    grammar = Tools.of({"tools": [tool("now", parameters)]}).grammar(CallMarks(HERMES, {}), None)
    assert follows(grammar, '<tool_call>\n{"name": "now", "arguments": {') == ({"}"}, False)
    tagged = Tools.of({"tools": [tool("now", parameters)]}).grammar(CallMarks(QWEN_XML, {}), None)
    assert follows(tagged, "<function=now>\n<") == ({"/"}, False)
    forced = Tools.of({"tools": [tool("now", parameters)], "tool_choice": "required"})
    assert follows(forced.grammar(CallMarks(HERMES, {}), None), "{") == ({"}"}, False)


ODD = {"any": {}, "anything": True, "never": {"not": {}}, "said": {"description": "x"}, "n": {"type": "integer"}}


def test_properties_without_a_type_and_those_that_may_never_come():
    for choice in ("auto", "required"):
        tools = Tools.of({"tools": [*TOOLS, tool("odd", {"properties": ODD})], "tool_choice": choice})
        begun = '<tool_call>\n{"name": "odd", "arguments": {"'
        grammar = tools.grammar(CallMarks(HERMES, {}), None)
        assert follows(grammar, begun) == ({"a", "s", "n"}, False)
        assert follows(grammar, f'{begun}n": 1') is not None
        assert follows(grammar, f"{begun}ne") is None
        assert '"' in follows(grammar, f'{begun}anything": ')[0]


TAGGED = {
    "text": ("<parameter=text>\na < b\n", True),
    "a text that ends": ("<parameter=text>\na</parameter>\n<parameter=kind>\nleft", True),
    "another kind": ("<parameter=text>\na</parameter>\n<parameter=kind>\nr", True),
    "no kind": ("<parameter=text>\na</parameter>\n<parameter=kind>\nx", False),
    "a number": ("<parameter=text>\na</parameter>\n<parameter=number>\n42\n</parameter>\n", True),
    "a number beyond a bound": ("<parameter=text>\na</parameter>\n<parameter=number>\n420", False),
    "left out": ("<parameter=number>", False),
    "another name": ("<parameter=texts>", False),
}


@all_of("case", TAGGED)
def test_tags_hold_what_the_schema_allows(case):
    grammar = Tools.of({"tools": ALL}).grammar(CallMarks(QWEN_XML, {}), None)
    text, allowed = TAGGED[case]
    assert (follows(grammar, f"<function=put>\n{text}") is not None) == allowed


def test_what_tags_cannot_keep_is_refused_where_it_is_asked_for():
    both = {"properties": {"a": {"type": "string", "pattern": "x", "maxLength": 3}}}
    tools = {"tools": [tool("a", both), TOOLS[0]]}
    assert Tools.of(tools).grammar(CallMarks(QWEN_XML, {}), None)
    with pytest.raises(ValueError, match=r"the tool 'a' in the tags .* parameter 'a' must be a text with a length"):
        Tools.of(tools | {"tool_choice": "required"}).grammar(CallMarks(QWEN_XML, {}), None)
    with pytest.raises(ValueError, match="holds no name such as 'a b'"):
        Tools.of({"tools": [tool("a b", N)]}).grammar(CallMarks(QWEN_XML, {}), None)


# a model that tries everything: letters, and beginnings, marks and ends of calls in every format
PARTS = [
    *("<tool_call>", "</tool_call>", "\n", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "```json\n", "```"),
    *('{"name": "', "add", "put", "now", 'add"', 'put"', ', "arguments": ', ', "parameters": ', '"name"', "{", "}"),
    *("<parameter=", "text", "number", "kind>", ">\n", "</parameter>", "</function>", '"', ": ", ", ", "1", "true"),
    *('{"name": "add", "arguments": ', '{"arguments": {"n": 1}, "name": "add"}', '{"a', "{'name': 'add'", '"type": '),
    *("<tool_call>\n", "<function=add>\n", "[TOOL_CALLS]add[ARGS]", "[TOOL_CALLS][", "<parameter=n>\n", "; ", "["),
    *("]", "\\", "<function=", "}}"),
]
TOKENS = [*BYTES[:128], *map(str.encode, PARTS)]
ANYTHING = small_vocabulary(TOKENS)


def answers(grammar, number, seed, longest=120):
    """Return texts that a random model writes at temperature 2, with or without a constraint, and which are cut."""
    generator = torch.Generator().manual_seed(seed)
    likely = torch.zeros(ANYTHING.size)
    likely[128:] += 3  # parts rather than letters
    found = []
    for _ in range(number):
        constraint, ids, ended = None if grammar is None else ANYTHING.constraint(grammar), [], False
        while len(ids) < longest and not ended:
            logits = (torch.randn(ANYTHING.size, generator=generator) * 3 + likely) / 2
            if constraint is not None:
                logits = logits.masked_fill(~constraint.allowed(ids), -torch.inf)
            token = int(torch.multinomial(logits.softmax(-1), 1, generator=generator))
            ended = token in ANYTHING.ends
            ids += [] if ended else [token]
        found.append((b"".join(TOKENS[i] for i in ids).decode(errors="replace"), ended))
    return found


def judged(made, reader):
    """Return how many calls there are, how many of these are no JSON object, and how many do not fit their schema."""
    counts = Counter()
    schemas = {each["function"]["name"]: each["function"]["parameters"] or {"maxProperties": 0} for each in ALL}
    for text, ended in made:
        calls = reader().whole(text)[1]
        for place, call in enumerate(calls):
            if not ended and place == len(calls) - 1:
                continue  # the last one may be cut
            counts["calls"] += 1
            try:
                arguments = json.loads(call["function"]["arguments"])
                counts["no object"] += not isinstance(arguments, dict)
                schema = schemas[call["function"]["name"]]
                counts["misfit"] += not jsonschema.Draft202012Validator(schema).is_valid(arguments)
            except ValueError:
                counts["no JSON"] += 1
    return counts


@all_of("written, most", [(each, most) for each in (*TOOL_CALL_FORMATS, None) for most in (True, False)])
def test_every_call_of_a_model_that_tries_everything_is_what_its_schema_allows(written, most):
    marks, tools = CallMarks(written, {}), Tools.of({"tools": ALL, "parallel_tool_calls": most})
    made = answers(tools.grammar(marks, None), 12, seed=1)
    found = judged(made, lambda: tools.reader(marks, formed=False))
    assert found["calls"] >= 5
    if written is not None:
        assert any(written.opening in text for text, _ in made)
    # other formats' marks, and JSON whose name comes last, are kept by nothing: these calls are objects, and no more
    own = judged(made, lambda: CallReader([each["function"]["name"] for each in ALL], form=written, unmarked="kept"))
    assert (own["no JSON"], own["no object"]) == (0, 0)
    assert (found["no JSON"], found["no object"]) == (0, 0)


def test_a_model_that_no_constraint_holds_writes_calls_that_are_no_json():
    """The wrong variant: a reader that trusts in a constraint, and none."""
    made = answers(None, 60, seed=1)
    tools = Tools.of({"tools": ALL})
    found = judged(made, lambda: tools.reader(CallMarks(HERMES, {}), formed=False))
    assert found["no JSON"] > 0
    trusts_in_nothing = judged(made, lambda: CallReader([each["function"]["name"] for each in ALL]))
    assert trusts_in_nothing["calls"] > 0
    assert (trusts_in_nothing["no JSON"], trusts_in_nothing["no object"]) == (0, 0)
