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


USAGE = {
    "prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12,
    "prompt_tokens_details": {"cached_tokens": 2}, "completion_tokens_details": {"reasoning_tokens": 3},
}  # fmt: skip
CALL = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a"'}}
HEAD = {"created": 3, "model": "m"}
METRICS = {"speculative_decoding": {"acceptance_report": {"steps": 2}}}


def chunks(deltas, finish, *, logprobs=False):
    """Return the parts of a conversation's answer; each has a token of its own, whatever it says."""

    def chunk(number, delta, reason=None):
        told = {"content": [{"token": f"t{number}"}]} if logprobs and reason is None else None
        return HEAD | {"choices": [{"index": 0, "delta": delta, "logprobs": told, "finish_reason": reason}]}

    parts = [chunk(number, delta) for number, delta in enumerate(deltas)]
    first, last = ({"role": "assistant", "content": ""}, {})
    return [
        HEAD | {"choices": [{"index": 0, "delta": first, "logprobs": None, "finish_reason": None}]},
        *parts,
        chunk(len(parts), last, finish),
        HEAD | {"choices": [], "usage": USAGE, "metrics": METRICS},
    ]


def writer():
    return ResponseWriter(ResponsesBody.read({"input": "Hi"}))


def events(given):
    lines = b"".join(writer().parts(given)).decode().strip().split("\n\n")
    read = [each.split("\ndata: ") for each in lines]
    found = [(kind.removeprefix("event: "), json.loads(data)) for kind, data in read]
    assert all(kind == data["type"] for kind, data in found)
    assert [data["sequence_number"] for _, data in found] == [*range(len(found))]
    return [data for _, data in found]


def without_ids(response):
    return response | {"id": None, "output": [item | {"id": None} for item in response["output"]]}


SAID = [{"reasoning_content": "Hm"}, {"content": "So"}, {"content": ": "}]
CALLED = [{"tool_calls": [{"index": 0} | CALL]}, {"tool_calls": [{"index": 0, "function": {"arguments": ": 1}"}}]}]


@all_of("finish", ["stop", "length", "tool_calls"])
def test_events_join_to_the_response(finish):
    given = chunks(SAID + CALLED * (finish == "tool_calls"), finish)
    made = events(given)
    last = made[-1]["response"]
    assert without_ids(last) == without_ids(writer().whole(given))
    assert [item["type"] for item in last["output"]] == ["reasoning", "message", "function_call"][
        : 2 + (finish == "tool_calls")
    ]
    assert [part["text"] for item in last["output"][:2] for part in item["content"]] == ["Hm", "So: "]
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


NO_TEXT = {"content": ""}  # a token that is a part of a character, or of a mark
TOLD = {
    "each part": (SAID + CALLED, ["t1", "t2"]),
    "calls alone": (CALLED, []),
    "reasoning alone": (SAID[:1], []),
    "half a character first": ([NO_TEXT, *SAID[1:]], ["t0", "t1", "t2"]),
    "half a character last": ([*SAID, NO_TEXT], ["t1", "t2", "t3"]),
    "no text at all": ([NO_TEXT], ["t0"]),
    "what closes a call": ([*CALLED, NO_TEXT], []),
}


@all_of("case", TOLD)
def test_log_probabilities_are_those_of_the_text(case):
    deltas, tokens = TOLD[case]
    given = chunks(deltas, "stop", logprobs=True)
    made = events(given)
    assert without_ids(made[-1]["response"]) == without_ids(writer().whole(given))
    messages = [item for item in made[-1]["response"]["output"] if item["type"] == "message"]
    assert len(messages) <= 1
    assert [each["token"] for item in messages for each in item["content"][0]["logprobs"]] == tokens
    told = [
        each["token"] for event in made if event["type"].endswith("text.delta") for each in event.get("logprobs", [])
    ]
    assert told == tokens


ANOTHER = {"tool_calls": [{"index": 1} | CALL]}


@all_of("deltas, kinds", [
    ([], ["message"]),
    (SAID[:1], ["reasoning"]),
    ([*CALLED, {"content": "Ok"}, ANOTHER], ["function_call", "message", "function_call"]),
])  # fmt: skip
def test_what_a_response_consists_of(deltas, kinds):
    assert [item["type"] for item in writer().whole(chunks(deltas, "stop"))["output"]] == kinds


def test_what_the_answer_says_of_itself_is_in_the_last_event():
    told = [{"choice": "a", "probability": 1.0}]
    given = chunks(SAID, "stop")
    given[-2]["choices"][0]["choice_probabilities"] = told
    *before, last = events(given)
    assert (last["response"]["metrics"], last["response"]["choice_probabilities"]) == (METRICS, told)
    assert not any("metrics" in event.get("response", {}) for event in before)
    assert writer().whole(given)["metrics"] == METRICS
