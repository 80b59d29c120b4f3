"""OpenAI's Responses API: its requests as conversations, and answers to conversations as its responses and events."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, create_model

from cactus_decoding.core.checks import short_repr
from cactus_decoding.core.files.writing import as_json
from cactus_decoding.engines.openai.bodies import Body, ChatBody, Object, Objects, Text, neutral, only

_ELSEWHERE = frozenset(
    [
        *("messages", "max_tokens", "max_completion_tokens", "tools", "tool_choice", "functions", "function_call", "n"),
        *("response_format", "logprobs", "top_logprobs", "stream_options", "reasoning_effort", "verbosity"),
        *("prediction", "modalities"),
    ]
)
"""Fields of conversations that this API says in another way, or not at all."""
_LOGPROBS = "message.output_text.logprobs"
_NOT_KEPT = "responses are not kept: send the whole conversation as input"
_REASON = "reasoning"
_IDS = {"message": "msg", "function_call": "fc", _REASON: "rs"}


def _input(value: Any) -> Any:
    if isinstance(value, str) or (isinstance(value, list) and value and all(isinstance(each, dict) for each in value)):
        return value
    raise TypeError(f"input must be a text, or a list of objects that is not empty, but is {short_repr(value)}")


def _reasoning(given: dict[str, Any]) -> dict[str, Any]:
    """Refuse what is not served of it; a summary that is left to the server is the thinking part itself."""
    for name, value in given.items():
        if name != "effort" and value is not None and (name, value) != ("summary", "auto"):
            raise ValueError(f"reasoning may hold effort, but has {name}: the thinking part is told as it is")
    return given


if TYPE_CHECKING:
    _Shared = Body
else:
    _Shared = create_model(
        "_Shared",
        __base__=Body,
        **{
            name: (Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation, field)
            for name, field in ChatBody.model_fields.items()
            if name not in _ELSEWHERE
        },
    )


class ResponsesBody(_Shared):
    """What ``/v1/responses`` is sent."""

    input: Annotated[Any, BeforeValidator(_input)] = Field(
        description="What is said: a text, or messages, calls of functions and their results.",
        json_schema_extra={"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}]},
    )
    instructions: Text | None = Field(default=None, description="A system message that comes first.")
    max_output_tokens: int | None = Field(default=None, ge=1, description="Upper limit of the answer's length.")
    tools: Objects = Field(default=[], description="Functions that the answer may call, each with a JSON schema.")
    tool_choice: Text | Object = Field(
        default="auto", description="Whether a tool is called: none, auto, required, or the one that is named."
    )
    text: Object = Field(default={}, description="Form of the answer: text, json_object or json_schema.")
    include: list[Text] = Field(default=[], description=f"What else is told: {_LOGPROBS}, or nothing.")
    top_logprobs: int | None = Field(
        default=None, ge=0, le=20, description="How many of the likeliest tokens are named at each place."
    )
    stream_options: Object | None = neutral("What comes with a stream.")
    reasoning: Annotated[Object, AfterValidator(_reasoning)] = Field(
        default={}, description="How much the model thinks, as effort, where its chat template knows that."
    )
    max_tool_calls: int | None = neutral("Limit of calls of OpenAI's own tools.")
    truncation: Annotated[Any, only("disabled", "nothing is left out of a conversation")] = neutral(
        "Only disabled is served."
    )
    background: Annotated[Any, only(False, _NOT_KEPT)] = neutral("Only false is served.")
    previous_response_id: Annotated[Text | None, AfterValidator(lambda _: _refuse("previous_response_id"))] = Field(
        default=None, description="Not served, because responses are not kept."
    )
    conversation: Annotated[Any, AfterValidator(lambda _: _refuse("conversation"))] = Field(
        default=None, description="Not served, because responses are not kept."
    )


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not served: {_NOT_KEPT}")


def chat_of(body: ResponsesBody, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the conversation that a request means, as ``/v1/chat/completions`` is sent it."""
    chat = {name: value for name, value in given.items() if name in ChatBody.model_fields and name not in _ELSEWHERE}
    chat["stream_options"] = {"include_usage": True}
    chat["messages"] = [{"role": "system", "content": body.instructions}] if body.instructions is not None else []
    items = [{"role": "user", "content": body.input}] if isinstance(body.input, str) else body.input
    for item in items:
        _add(chat["messages"], item)
    if body.max_output_tokens is not None:
        chat["max_completion_tokens"] = body.max_output_tokens
    if body.reasoning.get("effort") is not None:
        chat["reasoning_effort"] = body.reasoning["effort"]
    if body.tools:
        chat["tools"] = [_tool(each) for each in body.tools]
    if body.tool_choice != "auto":
        choice = body.tool_choice
        if isinstance(choice, dict) and choice.get("type") != "allowed_tools":
            choice = {"function": {"name": choice.get("name")}}
        chat["tool_choice"] = choice
    written = body.text.get("format")
    if isinstance(written, dict):
        described = {name: value for name, value in written.items() if name != "type"}
        schema = written.get("type") == "json_schema"
        chat["response_format"] = {"type": "json_schema", "json_schema": described} if schema else written
    elif written is not None:
        raise TypeError(f"the format of text must be an object, but is {short_repr(written)}")
    if _LOGPROBS in body.include or body.top_logprobs is not None:
        chat |= {"logprobs": True, "top_logprobs": body.top_logprobs}
    return chat


def _add(messages: list[dict[str, Any]], item: Mapping[str, Any]) -> None:
    kind = item.get("type", "message")
    if kind == "message":
        messages.append({"role": item.get("role"), "content": item.get("content")})
    elif kind == "function_call":
        call = {"id": item.get("call_id"), "type": "function"}
        call["function"] = {"name": item.get("name"), "arguments": item.get("arguments")}
        if not messages or messages[-1]["role"] != "assistant":
            messages.append({"role": "assistant", "content": None})
        messages[-1].setdefault("tool_calls", []).append(call)
    elif kind == "function_call_output":
        content = item.get("output")
        messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": content})
    elif kind != _REASON:  # of an earlier answer, which templates leave out
        known = "message, function_call, function_call_output, reasoning"
        raise ValueError(f"an item of input must be of type {known}, but is {short_repr(kind)}")


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    if tool.get("type") != "function":
        raise ValueError(
            f"a tool must be of type function, but is {short_repr(tool.get('type'))}: there are no others here"
        )
    return {"type": "function", "function": {name: value for name, value in tool.items() if name != "type"}}


class ResponseWriter:
    """Writes an answer to a conversation, of which it is given the parts with their usage, as a response."""

    def __init__(self, body: ResponsesBody) -> None:
        self._body, self._id = body, f"resp_{secrets.token_hex(24)}"
        self._output = list[dict[str, Any]]()  # items that are begun; the last one may grow
        self._number = -1
        self._reason: str | None = None
        self._early = list[Any]()  # log-probabilities of a message's tokens whose text has yet to come
        self._told: dict[str, Any] = {}  # what else there is to tell

    def whole(self, chunks: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
        """Return the response that the events of `parts` end with."""
        response: Mapping[str, Any] = [*self._events(chunks)][-1]["response"]
        return response

    def parts(self, chunks: Iterable[Mapping[str, Any]]) -> Iterator[bytes]:
        """Yield the events of a response."""
        yield from map(self._line, self._events(chunks))

    def _events(self, chunks: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
        chunk: Mapping[str, Any] = {}
        for number, chunk in enumerate(chunks):
            if number == 0:
                for name in ("created", "in_progress"):
                    yield self._event(name, response=self._response(chunk, None))
            for choice in chunk["choices"]:
                yield from self._grow(choice)
            if "metrics" in chunk:
                self._told["metrics"] = chunk["metrics"]
        if not self._output:
            yield from self._said("message", "", logprobs=self._early)
        yield from self._finished()
        name = "incomplete" if self._reason == "length" else "completed"
        yield self._event(name, response=self._response(chunk, chunk["usage"]))

    def error(self, error: Mapping[str, Any]) -> bytes:
        """Return the event of an error, which is the last one."""
        told = error["error"]
        fields = {name: told[name] for name in ("message", "code", "param")}
        return self._line({"type": "error", "sequence_number": self._next()} | fields)

    def _grow(self, choice: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        delta, told = choice["delta"], (choice["logprobs"] or {}).get("content") or []
        self._reason = choice["finish_reason"] or self._reason
        if "choice_probabilities" in choice:
            self._told["choice_probabilities"] = choice["choice_probabilities"]
        if reasoning := delta.get("reasoning_content"):
            yield from self._said(_REASON, reasoning)
        if "content" in delta:
            self._early += told  # those of reasoning and of calls have no place here
        text, goes_on = delta.get("content"), self._output[-1:] and self._output[-1]["type"] == "message"
        if text or (self._early and goes_on):
            told, self._early = self._early, []
            yield from self._said("message", text or "", logprobs=told)
        for call in delta.get("tool_calls", []):
            if "id" in call:
                yield from self._started("function_call", call)
            arguments = call["function"]["arguments"]
            self._output[-1]["arguments"] += arguments
            yield self._event("function_call_arguments.delta", **self._place(), delta=arguments)

    def _said(self, kind: str, text: str, **told: list[Any]) -> Iterator[dict[str, Any]]:
        if not self._output or self._output[-1]["type"] != kind:
            yield from self._started(kind)
        part = self._output[-1]["content"][0]
        part["text"] += text
        for name, values in told.items():
            part[name] += values
        yield self._event(f"{part['type']}.delta", **self._place(content_index=0), delta=text, **told)

    def _started(self, kind: str, call: Mapping[str, Any] | None = None) -> Iterator[dict[str, Any]]:
        """Yield the events of an item's beginning, and before them those of the end of the last one."""
        if self._output:
            yield from self._finished(last=False)
        self._begin(kind, call)
        index, item = len(self._output) - 1, self._output[-1]
        empty = item | ({"content": []} if "content" in item else {})
        yield self._event("output_item.added", output_index=index, item=empty)
        if "content" in item:
            yield self._event("content_part.added", **self._place(content_index=0), part=item["content"][0])

    def _finished(self, *, last: bool = True) -> Iterator[dict[str, Any]]:
        item, index = self._output[-1], len(self._output) - 1
        self._end(self._reason if last else "stop")
        if item["type"] == "function_call":
            done = {"name": item["name"], "arguments": item["arguments"]}
            yield self._event("function_call_arguments.done", **self._place(), **done)
        else:
            part, place = item["content"][0], self._place(content_index=0)
            extra = {"logprobs": part["logprobs"]} if item["type"] == "message" else {}
            yield self._event(f"{part['type']}.done", **place, text=part["text"], **extra)
            yield self._event("content_part.done", **place, part=part)
        yield self._event("output_item.done", output_index=index, item=item)

    def _begin(self, kind: str, call: Mapping[str, Any] | None = None) -> None:
        item: dict[str, Any] = {"type": kind, "id": f"{_IDS[kind]}_{secrets.token_hex(24)}", "status": "in_progress"}
        if call is not None:
            item |= {"call_id": call["id"], "name": call["function"]["name"], "arguments": ""}
        elif kind == _REASON:
            item |= {"summary": [], "content": [{"type": "reasoning_text", "text": ""}]}
        else:
            part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            item |= {"role": "assistant", "content": [part]}
        self._output.append(item)

    def _end(self, reason: str | None) -> None:
        self._output[-1]["status"] = "incomplete" if reason == "length" else "completed"

    def _response(self, answer: Mapping[str, Any], usage: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return the response as it is now; it is complete where the usage is known."""
        body, cut = self._body, self._reason == "length"
        status = "in_progress" if usage is None else "incomplete" if cut else "completed"
        return {
            "id": self._id,
            "object": "response",
            "created_at": answer["created"],
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if usage is not None and cut else None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "model": answer["model"],
            "output": self._output if usage is not None else [],
            "parallel_tool_calls": body.given.get("parallel_tool_calls", True),
            "previous_response_id": None,
            "store": False,
            "temperature": body.given.get("temperature", 1.0),
            "text": {"format": {"type": "text"}} | body.text,
            "tool_choice": body.tool_choice,
            "tools": body.tools,
            "top_p": body.given.get("top_p", 1.0),
            "truncation": "disabled",
            "metadata": body.given.get("metadata", {}),
            "usage": None if usage is None else _usage(usage),
        } | self._told

    def _place(self, **more: int) -> dict[str, Any]:
        return {"output_index": len(self._output) - 1, "item_id": self._output[-1]["id"]} | more

    def _event(self, kind: str, /, **fields: Any) -> dict[str, Any]:
        return {"type": f"response.{kind}", "sequence_number": self._next()} | fields

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _line(self, event: Mapping[str, Any]) -> bytes:
        return f"event: {event['type']}\ndata: {as_json(event)}\n\n".encode()


def _usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": usage["prompt_tokens_details"],
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": usage["completion_tokens_details"],
        "total_tokens": usage["total_tokens"],
    }
