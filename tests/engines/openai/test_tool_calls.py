"""Calls as models write them: found in whole texts, and the same ones in texts that grow letter by letter."""

import random
from itertools import pairwise

import pytest
from support.tables import all_of

from cactus_decoding.engines.openai.tool_calls import CallReader, format_of

ADD = '{"name": "add", "arguments": {"a": 1}}'
SUB = '{"name": "sub", "arguments": {"b": "}<"}}'
TEXTS = {
    "hermes": (f"So:\n<tool_call>\n{ADD}\n</tool_call>\n<tool_call>\n{SUB}\n</tool_call>", "So:", ["add", "sub"]),
    "hermes, keys turned round": ('<tool_call>{"arguments": {"a": 1}, "name": "add"}</tool_call>\nOk', "Ok", ["add"]),
    "hermes, no JSON": ("<tool_call>none</tool_call>", "<tool_call>none</tool_call>", []),
    "hermes, cut": ('<tool_call>\n{"name": "add", "arguments": {"a": ', "", ["add"]),
    "mistral": (f"[TOOL_CALLS] [{ADD}, {SUB}]", "", ["add", "sub"]),
    "mistral, newer": ('[TOOL_CALLS]add[ARGS]{"a": 1}[TOOL_CALLS]sub[ARGS]{}', "", ["add", "sub"]),
    "llama": (f"{ADD}; {SUB}".replace("arguments", "parameters"), "", ["add", "sub"]),
    "llama, marked": ('<|python_tag|>{"name": "add", "parameters": {}}', "", ["add"]),
    "llama, a program": ("<|python_tag|>print(1)", "<|python_tag|>print(1)", []),
    "fenced": ('Sure:\n```json\n{\n "name": "add",\n "arguments": {"a": 1}\n}\n```\n', "Sure:", ["add"]),
    "fenced, of no tool": (f"```json\n{ADD.replace('add', 'Bob')}\n```\nIs it?", None, []),
    "a list": (f"[{ADD}]", "", ["add"]),
    "JSON in JSON": ('{"name": "add", "arguments": "{\\"a\\": 1}"}', "", ["add"]),
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
    "more keys, cut": (f'<tool_call>{ADD[:-1]}, "id": "x', "", ["add"]),
    "no closing brace": (f"<tool_call>{ADD[:-1]}\n</tool_call>\nOk", "Ok", ["add"]),
    "llama, with a type": (f'{{"type": "function", {ADD[1:]}', "", ["add"]),
    "JSON that answers": ('{"arguments": {}, "city": "Paris", "name": "add"}', None, []),
    "mistral, an unknown tool": ('[TOOL_CALLS]mul[ARGS]{"a": 1}', None, []),
    "mistral, a call's id": ('[TOOL_CALLS]add[CALL_ID]x9[ARGS]{"a": 1}', "", ["add"]),
}
ARGUMENTS = {
    "an object": (ADD, ['{"a": 1}']),
    "none": ('{"name": "add"}', ["{}"]),
    "a scalar": ('<tool_call>{"name": "add", "arguments": null}</tool_call>', ["null"]),
    "before the name": ('<tool_call>{"arguments": {"a":1}, "name": "add"}</tool_call>', ['{"a":1}']),
    "JSON in JSON": ('{"name": "add", "arguments": "{\\"a\\": 1}"}', ['{"a": 1}']),
    "JSON in JSON, cut": ('{"name": "add", "arguments": "{\\"a', [""]),
    "a brace in a text": (SUB, ['{"b": "}<"}']),
    "cut": ('<tool_call>{"name": "add", "arguments": {"a": [', ['{"a": [']),
    "several": (f"[TOOL_CALLS][{ADD}, {SUB}]", ['{"a": 1}', '{"b": "}<"}']),
}


def joined(pieces, names=("add", "sub")):
    """Return what a client puts together from a stream."""
    reader, said, calls = CallReader(names), "", []
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


def whole(text, names=("add", "sub")):
    said, calls = CallReader(names).whole(text)
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


def test_arguments_come_as_they_are_written():
    reader, text = CallReader(["add"]), '<tool_call>\n{"name": "add", "arguments": {"a": [1, 2]}}\n</tool_call>'
    parts = [part for letter in text for part in reader.more(letter, done=False)]
    written = [part["function"]["arguments"] for part in parts]
    assert "".join(written) == '{"a": [1, 2]}'
    assert len(written) > 10


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
        expected = whole(text)
        ways = [[*text, ""], cut(generator, text), cut(generator, text)]
        if any(joined(way) != expected for way in ways) or (not expected[1] and expected[0] != text):
            found.append(text)
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
    reader = CallReader(["add", "sub"])
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
        ("{% if tools %}<tool_call><function=x>{% endif %}", None),
        ("{% if tools %}[TOOL_CALLS]x[ARGS]{% endif %}", None),
        ("{{ messages }}", None),
        (None, None),
    ):
        found = format_of(template)
        assert (found.name if found else None) == name
