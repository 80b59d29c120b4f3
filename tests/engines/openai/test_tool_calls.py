"""Calls as models write them: found in whole texts, and the same ones in texts that grow letter by letter."""

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
}


def by_letters(text):
    """Return what a client puts together from a stream."""
    reader, said, calls = CallReader(["add", "sub"]), "", []
    for i in range(len(text) + 1):
        more, deltas, number = reader.more(text[:i], done=False)
        said += more
        if i == len(text):
            last, rest, number = reader.more(text, done=True)
            said, deltas = said + last, deltas + rest
        for delta in deltas:
            if "id" in delta:
                calls.append({"id": delta["id"], "type": delta["type"], "function": {**delta["function"]}})
                assert delta["index"] == len(calls) - 1
            else:
                calls[delta["index"]]["function"]["arguments"] += delta["function"]["arguments"]
    assert number == len(calls)
    return said, calls


@all_of("case", TEXTS)
def test_calls_are_found_whole_and_letter_by_letter(case):
    text, content, names = TEXTS[case]
    said, calls = CallReader(["add", "sub"]).whole(text)
    assert (said or "", [call["function"]["name"] for call in calls]) == (text if content is None else content, names)
    streamed, grown = by_letters(text)
    assert streamed == (said or "")
    assert [call["function"] for call in grown] == [call["function"] for call in calls]
    assert all(call["id"].startswith("call_") for call in grown)


def test_arguments_come_as_they_are_written():
    reader, text = CallReader(["add"]), '<tool_call>\n{"name": "add", "arguments": {"a": [1, 2]}}\n</tool_call>'
    parts = [reader.more(text[:i], done=False)[1] for i in range(len(text) + 1)]
    written = [part[0]["function"]["arguments"] for part in parts if part]
    assert "".join(written) == '{"a": [1, 2]}'
    assert len(written) > 10


def test_a_forced_call_is_its_arguments():
    assert CallReader(["add"], "add").whole('{"a": 1}')[1][0]["function"] == {"name": "add", "arguments": '{"a": 1}'}
    reader = CallReader(["add"], "add")
    assert reader.more('{"a', done=False)[1][0]["function"] == {"name": "add", "arguments": '{"a'}
    assert reader.more('{"a": 1}', done=True) == ("", [{"index": 0, "function": {"arguments": '": 1}'}}], 1)


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
