"""Calls as models write them: found in whole texts, and the same ones in texts that grow letter by letter."""

import json
import random
from itertools import pairwise

import pytest
from support.tables import all_of

from cactus_decoding.engines.openai.tool_calls import CallReader
from cactus_decoding.engines.openai.tool_formats import (
    HERMES,
    LLAMA,
    MISTRAL,
    MISTRAL_NAMED,
    QWEN_XML,
    TOOL_CALL_FORMATS,
    format_of,
)

ADD = '{"name": "add", "arguments": {"a": 1}}'
SUB = '{"name": "sub", "arguments": {"b": "}<"}}'
TAGS = "<function=add>\n<parameter=a>\n1\n</parameter>\n</function>"
SUB_TAGS = "<function=sub><parameter=b>}<</parameter></function>"
TEXTS = {
    "hermes": (f"So:\n<tool_call>\n{ADD}\n</tool_call>\n<tool_call>\n{SUB}\n</tool_call>", "So:", ["add", "sub"]),
    "hermes, keys turned round": ('<tool_call>{"arguments": {"a": 1}, "name": "add"}</tool_call>\nOk', "Ok", ["add"]),
    "hermes, no JSON": ("<tool_call>none</tool_call>", "<tool_call>none</tool_call>", []),
    "hermes, cut": ('<tool_call>\n{"name": "add", "arguments": {"a": ', None, []),
    "hermes, wrong JSON": ('<tool_call>{"name": "add", "arguments": {"a" 1}}</tool_call>', None, []),
    "hermes, no object": ('<tool_call>{"name": "add", "arguments": [1]}</tool_call>', None, []),
    "tags": (f"So:\n<tool_call>\n{TAGS}\n</tool_call>\n<tool_call>{SUB_TAGS}</tool_call>", "So:", ["add", "sub"]),
    "tags without a mark": (f"So: {TAGS} and {SUB_TAGS}.", "So: and.", ["add", "sub"]),
    "tags, two in one mark": (f"<tool_call>{TAGS}{SUB_TAGS}</tool_call>", "", ["add", "sub"]),
    "tags of an unknown tool": (f"<tool_call>{TAGS.replace('add', 'mul')}</tool_call>", None, []),
    "tags, cut": (f"<tool_call>{TAGS[:-1]}", None, []),
    "tags with text between": ("<function=add>now</function>", None, []),
    "mistral": (f"[TOOL_CALLS] [{ADD}, {SUB}]", "", ["add", "sub"]),
    "mistral, newer": ('[TOOL_CALLS]add[ARGS]{"a": 1}[TOOL_CALLS]sub[ARGS]{}', "", ["add", "sub"]),
    "llama": (f"{ADD}; {SUB}".replace("arguments", "parameters"), "", ["add", "sub"]),
    "llama, marked": ('<|python_tag|>{"name": "add", "parameters": {}}', "", ["add"]),
    "llama, a program": ("<|python_tag|>print(1)", "<|python_tag|>print(1)", []),
    "fenced": ('Sure:\n```json\n{\n "name": "add",\n "arguments": {"a": 1}\n}\n```\n', "Sure:", ["add"]),
    "fenced, of no tool": (f"```json\n{ADD.replace('add', 'Bob')}\n```\nIs it?", None, []),
    "a list": (f"[{ADD}]", "", ["add"]),
    "JSON in JSON": ('{"name": "add", "arguments": "{\\"a\\": 1}"}', "", ["add"]),
    "within a text": (f"So {ADD}, then {SUB}.", "So, then.", ["add", "sub"]),
    "wrong JSON within a text": (f"So {ADD[:-1]}.", None, []),
    "other JSON": ('{"name": "Bob"}', None, []),
    "JSON of an unknown tool": (ADD.replace("add", "mul"), None, []),
    "cut in a name": ('{"name": "a', None, []),
    "signs": ("a < b, [1, 2], ```py\n[1]\n``` and <tool", None, []),
    "nothing": ("", None, []),
    "a mark before a call": (f"<tool_call><tool_call>{ADD}</tool_call>", "<tool_call>", ["add"]),
    "text between calls": (f"<tool_call>{ADD}</tool_call> and <tool_call>{SUB}</tool_call> \n", "and", ["add", "sub"]),
    "a closing mark that is cut": (f"<tool_call>{ADD}\n</tool_", "", ["add"]),
    "a list that another text follows": (f"[{ADD}]\nOk", "Ok", ["add"]),
    "more keys": (f'<tool_call>{ADD[:-1]}, "id": {{"x": "}}"}}}}\n</tool_call>', "", ["add"]),
    "more keys, cut": (f'<tool_call>{ADD[:-1]}, "id": "x', None, []),
    "no closing brace": (f"<tool_call>{ADD[:-1]}\n</tool_call>\nOk", None, []),
    "llama, with a type": (f'{{"type": "function", {ADD[1:]}', "", ["add"]),
    "JSON that answers": ('{"arguments": {}, "city": "Paris", "name": "add"}', None, []),
    "mistral, an unknown tool": ('[TOOL_CALLS]mul[ARGS]{"a": 1}', None, []),
    "mistral, a call's id": ('[TOOL_CALLS]add[CALL_ID]x9[ARGS]{"a": 1}', "", ["add"]),
}
ARGUMENTS = {
    "an object": (ADD, ['{"a": 1}']),
    "none": ('{"name": "add"}', ["{}"]),
    "null": ('<tool_call>{"name": "add", "arguments": null}</tool_call>', ["{}"]),
    "nothing": ('<tool_call>{"name": "add", "arguments": ""}</tool_call>', ["{}"]),
    "tags": (f"<tool_call>{TAGS}</tool_call>", ['{"a": 1}']),
    "tags, twice the same": (f"<tool_call>{TAGS.replace('</func', '<parameter=a>2</parameter></func')}", ['{"a": 1}']),
    "no tags": ("<function=add></function><function=sub>\n</function>", ["{}", "{}"]),
    "before the name": ('<tool_call>{"arguments": {"a":1}, "name": "add"}</tool_call>', ['{"a":1}']),
    "JSON in JSON": ('{"name": "add", "arguments": "{\\"a\\": 1}"}', ['{"a": 1}']),
    "a brace in a text": (SUB, ['{"b": "}<"}']),
    "several": (f"[TOOL_CALLS][{ADD}, {SUB}]", ['{"a": 1}', '{"b": "}<"}']),
}


STREAMED = {
    "hermes": (HERMES, '<tool_call>\n{"name": "add", "arguments": {"a": [1, 2]}}\n</tool_call>', '{"a": [1, 2]}'),
    "hermes, cut": (HERMES, '<tool_call>{"name": "add", "arguments": {"a": [', '{"a": ['),
    "mistral": (MISTRAL, '[TOOL_CALLS][{"name": "add", "arguments": {"a": [1, 2]}}]', '{"a": [1, 2]}'),
    "mistral, newer": (MISTRAL_NAMED, '[TOOL_CALLS]add[ARGS]{"a": [1, 2]}', '{"a": [1, 2]}'),
    "llama": (LLAMA, '<|python_tag|>{"name": "add", "parameters": {"a": [1, 2]}}', '{"a": [1, 2]}'),
    "without a mark": (None, 'So {"name": "add", "arguments": {"a": [1, 2]}}', '{"a": [1, 2]}'),
    "fenced": (None, '```json\n{\n"name": "add",\n"parameters": {"a": [1, 2]}}\n```', '{"a": [1, 2]}'),
    "tags": (QWEN_XML, "<tool_call>\n<function=add><parameter=s>\nab\ncd\n</parameter>", '{"s": "ab\\ncd"'),
}


def joined(pieces, names=("add", "sub"), **kept):
    """Return what a client puts together from a stream."""
    reader, said, calls = CallReader(names, **kept), "", []
    for i, piece in enumerate(pieces):
        for part in reader.more(piece, done=i == len(pieces) - 1):
            if isinstance(part, str):
                said += part
            elif "id" in part:
                assert part["index"] == len(calls)
                assert part["id"].startswith("call_")
                calls.append(part["function"])
            else:
                assert part["index"] == len(calls) - 1
                calls[-1]["arguments"] += part["function"]["arguments"]
    assert reader.number == len(calls)
    return said, calls


def whole(text, names=("add", "sub"), **kept):
    said, calls = CallReader(names, **kept).whole(text)
    return said or "", [call["function"] for call in calls]


@all_of("case", TEXTS)
def test_calls_are_found_whole_and_letter_by_letter(case):
    text, content, names = TEXTS[case]
    said, calls = whole(text)
    assert (said, [call["name"] for call in calls]) == (text if content is None else content, names)
    assert joined([*text, ""]) == (said, calls)


@all_of("case", ARGUMENTS)
def test_what_calls_are_given(case):
    text, arguments = ARGUMENTS[case]
    said, calls = whole(text)
    assert (said, [call["arguments"] for call in calls]) == ("", arguments)


@all_of("case", STREAMED)
def test_arguments_that_a_constraint_keeps_come_as_they_are_written(case):
    form, text, arguments = STREAMED[case]
    known = {"add": {"type": "object", "properties": {"s": {"type": "string"}}}}
    reader = CallReader(known, form=form, unmarked="kept")
    parts = [part for letter in text for part in reader.more(letter, done=False) if not isinstance(part, str)]
    written = [part["function"]["arguments"] for part in parts]
    assert "".join(written) == arguments
    assert len(written) > 5


TYPED = {
    "an integer": ({"type": "integer"}, "\n5\n", "5"),
    "a text of digits": ({"type": "string"}, "\n5\n", '"5"'),
    "a text with line breaks": ({"type": "string"}, '\n\na "b"\n\n', '"\\na \\"b\\"\\n"'),
    "a truth value of Python's": ({"type": "boolean"}, "True", "true"),
    "an object": ({"type": "object"}, '\n{"x":\n1}\n', '{"x":\n1}'),
    "a list": ({"$ref": "#/$defs/L"}, "[1]", "[1]"),
    "null, or a text": ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "null", "null"),
    "a text, or null": ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "5", '"5"'),
    "a text, or an integer": ({"type": ["string", "integer"]}, "5", "5"),
    "a text that is quoted": ({"type": ["string", "integer"]}, '"5"', '"\\"5\\""'),
    "a text that an enumeration names": ({"enum": ["5", 6]}, "5", '"5"'),
    "a number that it names": ({"enum": ["5", 6]}, "6", "6"),
    "no type": ({}, "1.5", "1.5"),
    "what is no JSON": ({"type": "integer"}, "five", '"five"'),
    "no number of JSON": ({"type": "number"}, "NaN", '"NaN"'),
    "nested in allOf": ({"allOf": [{"type": "string"}]}, "5", '"5"'),
}


@all_of("case", TYPED)
def test_texts_between_tags_have_the_types_of_the_schema(case):
    schema, text, argument = TYPED[case]
    known = {"add": {"properties": {"a": schema}, "$defs": {"L": {"type": "array"}}}}
    written = f"<tool_call><function=add><parameter=a>{text}</parameter></function></tool_call>"
    for kept in ({}, {"form": QWEN_XML}):
        expected = ("", [{"name": "add", "arguments": f'{{"a": {argument}}}'}])
        assert whole(written, known, **kept) == expected
        assert joined([*written, ""], known, **kept) == expected


def test_json_without_a_mark_is_text_where_it_is_said_to_be():
    text = f"So {ADD}, ```json\n{SUB}\n```."
    assert whole(text, unmarked="text") == (text, [])
    marked = f"{text}<tool_call>{ADD}</tool_call>"
    assert whole(marked, unmarked="text") == (text, [{"name": "add", "arguments": '{"a": 1}'}])


BEGINNINGS = {
    "a <": "a",
    "a < b": "a < b",
    "<tool_call>no": "<tool_call>no",
    '{"city": "': '{"city": "',
    '```json\n{"x": 1': '```json\n{"x": 1',
    "[1, 2": "[1, 2",
}


@all_of("text", BEGINNINGS)
def test_text_comes_as_soon_as_it_can_be_no_call(text):
    assert CallReader(["add"]).more(text, done=False) == [BEGINNINGS[text]]


# marks, calls of every format and parts of both, in any order, with what only looks like them
PARTS = [
    *("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<|python_tag|>", "```json\n", "```", "x9"),
    *('{"name": "add", "arguments": ', '{"name": "sub", "parameters": ', '{"arguments": {"a": 1}, "name": "add"}'),
    *('{"name":"add"}', '{"a": "}\\"<tool_call>"}', '"{\\"a\\": 1}"', '"a\nb"', "null", "7", ADD, SUB, "{}", "[]"),
    *("add", "sub", "mul", '{"name": "Bob"}', '"type": "function"', " ", "\n", '"', "\\", *"{}[],;:"),
    *("<function=add>", "<parameter=a>", "</parameter>", "</function>", "<function=", "<parameter=b>\n", "\n1\n"),
    *("<", "`", "So", "\u2003", "\x1c", "\ud83d", "<tool", "[TOOL", "```js "),
]
WRITTEN = [
    f"\n<tool_call>\n{ADD}\n</tool_call>\n",
    f'<tool_call>{SUB[:-1]}, "id": [1]}}</tool_call>',
    f"[TOOL_CALLS] [{ADD}, {SUB}]",
    '[TOOL_CALLS]add[ARGS]{"a": 1}',
    "[TOOL_CALLS]sub[CALL_ID]x9[ARGS]{}",
    f"{ADD}; {SUB}",
    f"<|python_tag|>{ADD}; {SUB}",
    f"```json\n[{ADD}]\n```",
    f"<tool_call>\n{TAGS}\n</tool_call>",
    f"{SUB_TAGS}\n",
    f'{{"type": "function", {ADD[1:]}',
]


def random_text(generator):
    """Return a text of parts; of some a slice is missing, or one stands twice."""
    parts = [generator.choice(generator.choice((PARTS, WRITTEN))) for _ in range(generator.randint(1, 9))]
    text = "".join(parts)
    if generator.random() < 0.5:
        first, last = sorted(generator.choices(range(len(text) + 1), k=2))
        last = min(last, first + generator.randint(1, 12))
        text = text[:first] + text[first:last] * generator.choice((0, 2)) + text[last:]
    return text


def cut(generator, text):
    places = sorted(generator.choices(range(len(text) + 1), k=generator.randint(0, 6)))
    return [text[i:j] for i, j in pairwise([0, *places, len(text)])]


def differing(number, seed=0):
    """Return those of some random texts of which a way to cut them gives something else than the whole."""
    generator = random.Random(seed)
    found = []
    for _ in range(number):
        text = random_text(generator)
        kept = {"form": generator.choice([None, *TOOL_CALL_FORMATS])}
        kept["unmarked"] = generator.choice(["kept", "read", "text"])
        expected = whole(text, **kept)
        ways = [[*text, ""], cut(generator, text), cut(generator, text)]
        if any(joined(way, **kept) != expected for way in ways) or (not expected[1] and expected[0] != text):
            found.append((text, kept))
        elif kept["form"] is None and kept["unmarked"] != "kept":
            assert all(isinstance(json.loads(call["arguments"]), dict) for call in expected[1]), text
    return found


def test_the_pieces_of_an_answer_join_to_what_the_whole_says():
    assert differing(500) == []


@pytest.mark.slow
def test_every_cut_in_two_joins_to_the_whole():
    generator = random.Random(1)
    for _ in range(20):
        text = random_text(generator)
        expected = whole(text)
        for i in range(len(text) + 1):
            assert joined([text[:i], text[i:]]) == expected, (text, i)


def test_what_is_said_and_called_keeps_its_order():
    reader = CallReader(["add", "sub"], form=HERMES)
    assert len(reader.more('<tool_call>{"name": "add", "arguments": {"a": ', done=False)) == 1
    rest, between, call = reader.more(f"1}}}}</tool_call>So <tool_call>{SUB}</tool_call>", done=True)
    assert (rest["function"], between, call["function"]["name"]) == ({"arguments": "1}"}, "So", "sub")


def test_a_forced_call_is_its_arguments():
    assert CallReader(["add"], "add").whole('{"a": 1}')[1][0]["function"] == {"name": "add", "arguments": '{"a": 1}'}
    reader = CallReader(["add"], "add")
    assert reader.more('{"a', done=False)[0]["function"] == {"name": "add", "arguments": '{"a'}
    assert reader.more('": 1}', done=True) == [{"index": 0, "function": {"arguments": '": 1}'}}]


def test_formats_are_told_by_the_marks_of_templates():
    for template, name in (
        ("{% if tools %}<tool_call>{% endif %}", "hermes"),
        ("{% if tools %}[AVAILABLE_TOOLS]{% endif %}[TOOL_CALLS]", "mistral"),
        ('{% if tools %}{"name": x, "parameters": y}{% endif %}', "llama3"),
        ("{% if tools %}<tool_call><function=x><parameter=y>{% endif %}", "qwen3_xml"),
        ("{% if tools %}<tool_call><function=x>{% endif %}", None),
        ("{% if tools %}<tool_call>x<arg_key>{% endif %}", None),
        ("{% if tools %}[TOOL_CALLS]x[ARGS]{% endif %}", "mistral_named"),
        ("{{ messages }}", None),
        (None, None),
    ):
        found = format_of(template)
        assert (found.name if found else None) == name


@pytest.mark.parametrize(
    ("written", "called"),
    [
        ('{"name": "add"}', None),
        ('{"name": "now"}', "{}"),
        ('{"name": "add", "id": 3}', None),
        ('{"arguments": {"b": 1}, "name": "add"}', None),
        ('{"arguments": {"a": 1}, "name": "add"}', '{"a": 1}'),
        ('{"name": "add", "arguments": {"a": 1}}', '{"a": 1}'),
    ],
)
def test_json_without_what_a_function_requires_is_text_where_a_constraint_keeps_calls(written, called):
    known = {"add": {"properties": {"a": {}}, "required": ["a"]}, "now": {}}
    said, calls = whole(written, known, unmarked="kept")
    assert [each["arguments"] for each in calls] == ([] if called is None else [called])
    assert said == (written if called is None else "")
    assert joined([*written, ""], known, unmarked="kept") == (said, calls)
