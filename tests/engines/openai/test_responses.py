"""The Responses API: its requests are those of conversations, and its events join to its responses."""

import json

import pytest
from support.tables import all_of

from cactus_decoding.engines.openai.responses import ResponsesBody, ResponseWriter, chat_of

ADD = {"name": "add", "parameters": {"type": "object"}, "strict": True}
FORM = {"type": "json_schema", "name": "n", "schema": {"type": "integer"}, "strict": True}


def chat(**given):
    read = {"input": "Hi"} | given
    return chat_of(ResponsesBody.read(read), read)


def test_a_request_is_a_conversation():
    assert chat()["messages"] == [{"role": "user", "content": "Hi"}]
    assert chat(instructions="Be brief.")["messages"][0] == {"role": "system", "content": "Be brief."}
    kept = {"seed": 3, "temperature": 0.5, "acceptance_rule": "lossless", "stream": True, "num_speculative_tokens": 2}
    assert kept.items() <= chat(max_output_tokens=9, **kept).items()
    assert chat(max_output_tokens=9)["max_completion_tokens"] == 9
    tools = chat(tools=[{"type": "function"} | ADD], tool_choice={"type": "function", "name": "add"})
    assert tools["tools"] == [{"type": "function", "function": ADD}]
    assert tools["tool_choice"] == {"function": {"name": "add"}}
    assert chat(tools=[{"type": "function"} | ADD], tool_choice="required")["tool_choice"] == "required"
    form = chat(text={"format": FORM})["response_format"]
    assert form == {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "integer"}, "strict": True}}
    assert chat(text={"format": {"type": "text"}})["response_format"] == {"type": "text"}
    told = chat(include=["message.output_text.logprobs"], top_logprobs=2)
    assert (told["logprobs"], told["top_logprobs"]) == (True, 2)


def test_calls_and_results_stand_in_their_messages():
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "2 + 3?"}]},
        {"type": "reasoning", "summary": []},
        {"type": "function_call", "call_id": "a", "name": "add", "arguments": "{}"},
        {"type": "function_call", "call_id": "b", "name": "add", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": "5"},
    ]
    user, call, result = chat(input=items)["messages"]
    assert user["content"] == items[0]["content"]
    assert [each["id"] for each in call["tool_calls"]] == ["a", "b"]
    assert result == {"role": "tool", "tool_call_id": "a", "content": "5"}


@all_of(
    "given, said",
    [
        ({"input": []}, "input must be a text"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "an item of input must be of type message"),
        ({"previous_response_id": "resp_1"}, "previous_response_id is not served"),
        ({"conversation": "conv_1"}, "conversation is not served"),
        ({"background": True}, "background of True is not served"),
        ({"truncation": "auto"}, "truncation of 'auto' is not served"),
        ({"tools": [{"type": "web_search"}]}, "a tool must be of type function"),
        ({"text": {"format": 3}}, "the format of text must be an object"),
        ({"messages": []}, "a request has no 'messages'"),
        ({"max_output_tokens": 0}, "max_output_tokens must be at least 1"),
        ({"seed": "x"}, "seed must be an integer"),
    ],
)
def test_what_is_not_served_is_refused(given, said):
    with pytest.raises((TypeError, ValueError)) as error:
        chat(**given)
    assert said in str(error.value)


USAGE = {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}
CALL = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
HEAD = {"created": 3, "model": "m"}


def events(deltas, finish):
    def chunk(delta, reason=None):
        return HEAD | {"choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}]}

    chunks = [chunk({"role": "assistant", "content": ""}), *map(chunk, deltas), chunk({}, finish)]
    chunks.append(HEAD | {"choices": [], "usage": USAGE})
    lines = b"".join(ResponseWriter(ResponsesBody.read({"input": "Hi"})).parts(chunks)).decode().strip().split("\n\n")
    read = [each.split("\ndata: ") for each in lines]
    found = [(kind.removeprefix("event: "), json.loads(data)) for kind, data in read]
    assert all(kind == data["type"] for kind, data in found)
    assert [data["sequence_number"] for _, data in found] == [*range(len(found))]
    return [data for _, data in found]


def without_ids(response):
    return response | {"id": None, "output": [item | {"id": None} for item in response["output"]]}


@all_of("finish", ["stop", "length", "tool_calls"])
def test_events_join_to_the_response(finish):
    first = {"index": 0} | CALL | {"function": {"name": "add", "arguments": '{"a"'}}
    calls = [{"tool_calls": [first]}, {"tool_calls": [{"index": 0, "function": {"arguments": ": 1}"}}]}]
    deltas = [{"reasoning_content": "Hm"}, {"content": "So"}, {"content": ": "}]
    message = {"reasoning_content": "Hm", "content": "So: "}
    if finish == "tool_calls":
        deltas, message = deltas + calls, message | {"tool_calls": [CALL]}
    answer = HEAD | {"choices": [{"message": message, "logprobs": None, "finish_reason": finish}], "usage": USAGE}
    whole = ResponseWriter(ResponsesBody.read({"input": "Hi"})).whole(answer)
    made = events(deltas, finish)
    last = made[-1]["response"]
    assert without_ids(last) == without_ids(whole)
    assert [item["type"] for item in last["output"]] == ["reasoning", "message", "function_call"][
        : 2 + (finish == "tool_calls")
    ]
    assert last["status"] == ("incomplete" if finish == "length" else "completed")
    assert last["incomplete_details"] == ({"reason": "max_output_tokens"} if finish == "length" else None)
    assert last["output"][-1]["status"] == last["status"]
    kinds = [event["type"].removeprefix("response.") for event in made]
    assert kinds[:2] == ["created", "in_progress"]
    assert kinds.count("output_item.added") == kinds.count("output_item.done") == len(last["output"])
    said = [event["delta"] for event in made if event["type"] == "response.output_text.delta"]
    assert "".join(said) == "So: "
    written = [event["delta"] for event in made if event["type"] == "response.function_call_arguments.delta"]
    assert "".join(written) == ('{"a": 1}' if finish == "tool_calls" else "")
