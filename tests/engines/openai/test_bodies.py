"""Bodies of OpenAI's requests: every field is described, settings are those of `Request`, texts can be encoded."""

import json

import pytest
from support.tables import all_of

from cactus_decoding.core.request import SETTINGS
from cactus_decoding.engines.openai.bodies import NOT_SERVED, ChatBody, CompletionBody

BODIES = (CompletionBody, ChatBody)
LEAST = {"prompt": "Hi", "messages": [{"role": "user", "content": "Hi"}]}


def least(kind):
    return {name: LEAST[name] for name, field in kind.model_fields.items() if field.is_required()}


@all_of("kind", BODIES)
def test_each_field_is_described_in_a_line(kind):
    schema = json.loads(json.dumps(kind.model_json_schema()))
    assert [*schema["properties"]] == [*kind.model_fields]
    assert (schema["additionalProperties"], schema["required"]) == (False, [*least(kind)])
    parts = [schema, *schema["$defs"].values()]
    for name, said in ((name, said) for part in parts for name, said in part["properties"].items()):
        assert said["description"].endswith("."), name
        assert "\n" not in said["description"], name


@all_of("kind", BODIES)
def test_settings_have_the_type_and_the_limits_that_the_request_declares(kind):
    described = kind.model_json_schema()["properties"]
    opened = {each.key: each for each in SETTINGS.values() if each.setting.from_clients}
    assert {*opened} <= {*described}
    assert not {*described} & {*NOT_SERVED} - {"best_of"}
    assert described["budget"]["anyOf"] == [{"type": "number", "minimum": 0}, {"type": "null"}]
    assert described["temperature"]["anyOf"] == [{"type": "number", "minimum": 0}, {"type": "null"}]
    assert (described["temperature"]["default"], described["budget"]["default"]) == (1.0, None)
    assert all(described[key]["description"] for key in opened)


@all_of("kind", BODIES)
def test_null_is_the_same_as_a_field_that_is_left_out(kind):
    body = least(kind) | {"seed": 1}
    nulls = dict.fromkeys((name for name in kind.model_fields if name not in body), None)
    assert kind.read(body | nulls) == kind.read(body)
    for name in least(kind):
        with pytest.raises(TypeError, match=f"^a request must have {name}$"):
            kind.read(body | {name: None})


@all_of("kind", BODIES)
def test_any_value_is_taken_or_refused_in_a_sentence_that_names_the_field(kind):
    odd = (10**400, float("nan"), float("inf"), "\ud800", {"\ud800": "\ud800"})
    values = (True, 0, -1, 1.5, "", "3", [], [3], {}, *odd)
    taken = 0
    for name in kind.model_fields:
        for value in values:
            try:
                kind.read(least(kind) | {name: value}).request({})
                taken += 1
            except (TypeError, ValueError) as error:
                said = str(error)
                assert name in said or (name == "messages" and "a message" in said), (name, value, said)
                assert "\n" not in said
                assert "pydantic" not in said
                assert "valid" not in said.split(" but is ")[0], "in our words"
    assert taken > len(kind.model_fields)


def test_objects_may_be_nested_deeply():
    deep = json.loads("[" * 900 + "]" * 900)
    body = ChatBody.read(least(ChatBody) | {"metadata": {"a": deep}, "messages": [{"role": "user", "notes": deep}]})
    assert body.messages[0].as_dict() == {"role": "user", "content": "", "notes": deep}


def test_calls_of_earlier_answers_have_their_arguments_as_objects():
    def calls(given):
        return ChatBody.read({"messages": [{"role": "assistant", "tool_calls": given}]}).messages[0].as_dict()

    def call(arguments):
        return {"id": "c", "function": {"name": "f", "arguments": arguments}}

    assert calls([call('{"a": 1}')]) == {"role": "assistant", "content": "", "tool_calls": [call({"a": 1})]}
    assert calls([call("{")])["tool_calls"] == [call("{")]
    for wrong, said in (("[" * 600 + "]" * 600, "may nest 256"), ('"\\ud800"', "half of a surrogate pair")):
        with pytest.raises(ValueError, match=rf"the arguments of a call .*{said}"):
            calls([call(wrong)])
    assert (calls([])["tool_calls"], calls(None)["tool_calls"]) == ([], None)
    for wrong, said in ((3, "tool_calls must be a list, but is 3"), ([3], "each of tool_calls must be an object")):
        with pytest.raises(TypeError, match=said):
            calls(wrong)
