"""Clients that ask a server, and what they find: `python -m support.clients_asked ADDRESS`, with tests on the path."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import httpx
import openai
from pydantic import BaseModel, Field

from support.client_requests import CALLED, CHATS, RESULT

ADDED = [{"role": "user", "content": "Finn has 2 nuts and Sam has 3. How many nuts do they have together?"}]
QUESTION = ADDED[0]["content"]
SAID = {"role": "assistant", "content": None, "tool_calls": [CALLED]}
NAMED = {"type": "function", "function": {"name": "add"}}
COUNTED = {"include_usage": True}
NUMBERS = {name: {"type": "integer", "minimum": 0, "maximum": 999} for name in "ab"}
PARAMETERS = {"type": "object", "properties": NUMBERS, "required": ["a", "b"]}
TOOLS: list[Any] = [{"type": "function", "function": {"name": "add", "description": "Adds", "parameters": PARAMETERS}}]
PARTS = [{"type": "text", "text": QUESTION}]
ANY = {"model": "any", "seed": 1}
IMAGE = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]


class Count(BaseModel):
    """A form of answer; small models write numbers without end."""

    n: int = Field(ge=0, le=999)


# checks of what clients read in answers; each says in a few words what it found


def text(choice: Any, content: str | None, usage: Any = None, most: int = 0) -> str:
    """Check a choice's text and end; say how it ended."""
    assert isinstance(content, str), content
    assert content, choice
    assert choice.finish_reason in ("stop", "length"), choice
    return f"{len(content)} characters, {choice.finish_reason}" + (f", {counted(usage, most)}" if usage else "")


def counted(usage: Any, most: int) -> str:
    """Check a count of tokens."""
    assert 0 < usage.completion_tokens <= most, usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens, usage
    return f"{usage.prompt_tokens} and {usage.completion_tokens} tokens"


def logprobs(content: Sequence[Any], said: str, top: int) -> str:
    """Check log-probabilities of a conversation's answer."""
    tokens = [each if isinstance(each, dict) else each.model_dump() for each in content]
    assert b"".join(bytes(each["bytes"]) for each in tokens).decode() == said, tokens
    assert all(each["logprob"] <= 0 and len(each["top_logprobs"]) == top for each in tokens), tokens
    ranked = [[other["logprob"] for other in each["top_logprobs"]] for each in tokens]
    assert ranked == [sorted(each, reverse=True) for each in ranked]
    return f"{len(tokens)} log-probabilities of 0 at most" + (f", each with {top} others" if top else "")


def call(name: str, given: dict[str, Any]) -> str:
    """Check a call of `add`."""
    assert name == "add", name
    assert {key: type(value) for key, value in given.items()} == {"a": int, "b": int}, given
    return f"add({json.dumps(given)})"


def calls(choice: Any) -> str:
    """Check a message's first call; there may be others, the last of them cut."""
    made, *others = choice.message.tool_calls
    assert (made.type, made.id[:5]) == ("function", "call_"), choice
    assert choice.finish_reason == "tool_calls" or (others and choice.finish_reason == "length"), choice
    return call(made.function.name, json.loads(made.function.arguments))


def streamed(chunks: Sequence[Any], most: int, *, told: bool = False) -> str:
    """Check a conversation's stream."""
    parts = [chunk.choices[0] for chunk in chunks if chunk.choices]
    said = "".join(part.delta.content or "" for part in parts)
    assert parts[0].delta.role == "assistant"
    assert [part.finish_reason is not None for part in parts] == [False] * (len(parts) - 1) + [True]
    found = f"{len(parts)} parts, {text(parts[-1], said)}, then {counted(chunks[-1].usage, most)}"
    if told:
        found += ", " + logprobs([each for p in parts if p.logprobs for each in p.logprobs.content], said, 0)
    return found


def refused(status: int, ask: Callable[[], Any], part: str) -> str:
    """Check that a request is refused, with what is said of it."""
    try:
        ask()
    except openai.APIStatusError as error:
        found, message = error.status_code, error.body["message"] if isinstance(error.body, dict) else str(error)
    else:
        raise AssertionError("not refused")
    assert (found, part in message) == (status, True), message
    return f"{status}: {message}"


def official(address: str) -> dict[str, Callable[[], str]]:
    """Return requests of OpenAI's own client."""
    client = openai.OpenAI(base_url=address, api_key="none", max_retries=0)
    chat, complete = client.chat.completions, client.completions.create

    def create(**more: Any) -> Any:
        return chat.create(**({"messages": ADDED, "max_tokens": 12} | ANY | more))

    def whole(**more: Any) -> str:
        answer = create(**more)
        (choice,) = answer.choices
        return text(choice, choice.message.content, answer.usage, 12)

    def same_seed() -> str:
        first, second = (create(temperature=1).choices[0].message.content for _ in range(2))
        assert first == second, (first, second)
        return "the same text"

    def told() -> str:
        choice = create(logprobs=True, top_logprobs=2).choices[0]
        return logprobs(choice.logprobs.content, choice.message.content, 2)

    def parsed() -> str:
        choice = chat.parse(messages=ADDED, max_tokens=60, response_format=Count, **ANY).choices[0]
        assert isinstance(choice.message.parsed, Count), choice
        return choice.message.content

    def json_object() -> str:
        choice = create(response_format={"type": "json_object"}, max_tokens=200).choices[0]
        if choice.finish_reason == "stop":
            assert isinstance(json.loads(choice.message.content), dict)
        return f"begins {choice.message.content.split()[0][:12]}, {choice.finish_reason}"

    def tool_stream() -> str:
        with chat.stream(messages=ADDED, tools=TOOLS, tool_choice=NAMED, max_tokens=60, **ANY) as stream:
            kinds = {event.type for event in stream}
            assert "tool_calls.function.arguments.done" in kinds, kinds
            return calls(stream.get_final_completion().choices[0])

    def tool_auto() -> str:
        choice = create(tools=TOOLS, max_tokens=60, temperature=0).choices[0]
        return calls(choice) if choice.message.tool_calls else text(choice, choice.message.content)

    def several() -> str:
        choices = create(n=2).choices
        assert [each.index for each in choices] == [0, 1]
        return "; ".join(text(each, each.message.content) for each in choices)

    def stopped() -> str:
        said = create(temperature=0).choices[0].message.content
        choice = create(temperature=0, stop=[said[4:6]]).choices[0]
        assert choice.message.content == said[: said.index(said[4:6])], (said, choice)
        assert choice.finish_reason == "stop", choice
        return f"{len(choice.message.content)} characters before it, stop"

    def report() -> str:
        ours = {"acceptance_rule": "clamped:width=1", "budget": 0.5, "protect": "digits", "acceptance_report": True}
        said = create(extra_body=ours).metrics["speculative_decoding"]["acceptance_report"]
        assert 0 <= said["nats"] <= 0.5, said
        return ", ".join(f"{name} {value}" for name, value in said.items() if isinstance(value, int | float))

    def left() -> str:
        with create(stream=True, max_tokens=400) as stream:
            next(iter(stream))
        return f"the next is answered: {whole()}"

    async def at_once() -> str:
        async with openai.AsyncOpenAI(base_url=address, api_key="none", max_retries=0) as both:
            made = [both.chat.completions.create(messages=ADDED, max_tokens=12, model="any", seed=i) for i in range(4)]
            choices = [answer.choices[0] for answer in await asyncio.gather(*made)]
        return "; ".join(text(each, each.message.content) for each in choices)

    def completed(**more: Any) -> str:
        answer = complete(**(ANY | {"prompt": "The sky is", "max_tokens": 4} | more))
        return "; ".join(text(each, each.text) for each in answer.choices) + f", {counted(answer.usage, 8)}"

    def completed_told() -> str:
        found = complete(prompt="The sky is", max_tokens=4, logprobs=2, **ANY).choices[0].logprobs
        assert all(value <= 0 for value in found.token_logprobs), found
        assert len({len(each) for each in (found.tokens, found.top_logprobs, found.text_offset)}) == 1, found
        return f"{len(found.tokens)} log-probabilities of 0 at most, with text offsets"

    def completed_stream() -> str:
        chunks = [*complete(prompt="The sky is", max_tokens=8, stream=True, stream_options=COUNTED, **ANY)]
        parts = [chunk.choices[0] for chunk in chunks if chunk.choices]
        return f"{text(parts[-1], ''.join(part.text for part in parts))}, then {counted(chunks[-1].usage, 8)}"

    respond, said = client.responses.create, {"input": QUESTION, "max_output_tokens": 12, "model": "any"}

    def responded(answer: Any) -> str:
        assert answer.output_text, answer
        assert answer.usage.output_tokens <= 12, answer
        return f"{len(answer.output_text)} characters, {answer.status}, {answer.usage.output_tokens} tokens"

    def response_stream() -> str:
        events = [*respond(stream=True, **said)]
        text_of = "".join(each.delta for each in events if each.type == "response.output_text.delta")
        last = events[-1]
        assert last.type in ("response.completed", "response.incomplete"), last
        assert last.response.output_text == text_of, (last, text_of)
        return f"{len(events)} events, {responded(last.response)}"

    def response_tool(**more: Any) -> str:
        tool = {"type": "function"} | TOOLS[0]["function"]
        asked = said | {"tools": [tool], "tool_choice": {"type": "function", "name": "add"}, "max_output_tokens": 60}
        (made,) = respond(**asked | more).output
        return call(made.name, json.loads(made.arguments))

    def response_parsed() -> str:
        answer = client.responses.parse(text_format=Count, **said | {"max_output_tokens": 60})
        assert isinstance(answer.output_parsed, Count), answer
        return answer.output_text

    def response_result() -> str:
        asked = {"type": "function_call", "call_id": "c", "name": "add", "arguments": '{"a": 2, "b": 3}'}
        result = {"type": "function_call_output", "call_id": "c", "output": "5"}
        return responded(respond(**said | {"input": [{"role": "user", "content": QUESTION}, asked, result]}))

    def wrong(part: str, **more: Any) -> str:
        return refused(400, lambda: create(**more), part)

    def asked_of(content: Any) -> dict[str, Any]:
        return {"messages": [{"role": "user", "content": content}]}

    harmless = {
        "user": "u", "service_tier": "auto", "store": False, "metadata": {"k": "v"}, "parallel_tool_calls": True,
        "reasoning_effort": "none", "safety_identifier": "s", "prompt_cache_key": "p", "verbosity": "low",
        "modalities": ["text"], "logit_bias": {"50": -1}, "prediction": {"type": "content", "content": "x"},
    }  # fmt: skip
    return {
        "models.list": lambda: ", ".join(each.id for each in client.models.list()),
        "models.retrieve": lambda: client.models.retrieve("ours").id,
        "models.retrieve, another": lambda: refused(404, lambda: client.models.retrieve("gpt-4o"), "no model"),
        "chat": whole,
        "chat, the same seed twice": same_seed,
        "chat, `stream`, usage, `logprobs`": lambda: streamed(
            [*create(stream=True, stream_options=COUNTED, logprobs=True)], 12, told=True
        ),
        "chat, `logprobs`, `top_logprobs` 2": told,
        "chat, `n` 2": several,
        "chat, `stop`": stopped,
        "chat, keys without effect": lambda: whole(**harmless),
        "chat, a developer's message, text in parts": lambda: whole(
            messages=[{"role": "developer", "content": "Be brief."}, {"role": "user", "content": PARTS}]
        ),
        "chat.parse, a pydantic model": parsed,
        "chat, `json_object`": json_object,
        "chat, tools, `required`": lambda: calls(create(tools=TOOLS, tool_choice="required", max_tokens=60).choices[0]),
        "chat.stream, a named tool": tool_stream,
        "chat, tools, `auto`": tool_auto,
        "chat, a tool's result": lambda: whole(messages=[*ADDED, SAID, RESULT], tools=TOOLS, tool_choice="none"),
        "chat, our keys in `extra_body`": report,
        "chat, four by the asynchronous client": lambda: asyncio.run(at_once()),
        "chat, a stream that is left": left,
        "completion": completed,
        "completion, two prompts": lambda: completed(prompt=["The sky is", "The sea is"]),
        "completion, tokens": lambda: completed(prompt=[5, 6, 7]),
        "completion, `echo`": lambda: completed(echo=True),
        "completion, `logprobs` 2": completed_told,
        "completion, `stream`, usage": completed_stream,
        "completion, `best_of` 2": lambda: refused(400, lambda: complete(prompt="x", best_of=2, **ANY), "best_of"),
        "completion, `suffix`": lambda: refused(400, lambda: complete(prompt="x", suffix="y", **ANY), "suffix"),
        "chat, an unknown key": lambda: wrong("did you mean", extra_body={"budge": 1}),
        "chat, an unknown rule": lambda: wrong("did you mean", extra_body={"acceptance_rule": "cactis"}),
        "chat, a stream of `max_tokens` 0": lambda: wrong("max_tokens", max_tokens=0, stream=True),
        "chat, an image": lambda: wrong("images", **asked_of(IMAGE)),
        "chat, longer than the context": lambda: wrong("shorter than", **asked_of("word " * 2000)),
        "embeddings": lambda: refused(404, lambda: client.embeddings.create(model="any", input="x"), "Not Found"),
        "responses.create": lambda: responded(respond(**said)),
        "responses.create, `stream`": response_stream,
        "responses.create, a function": response_tool,
        "responses.create, a function's result": response_result,
        "responses.parse, a pydantic model": response_parsed,
        "responses.create, `previous_response_id`": lambda: refused(
            400, lambda: respond(previous_response_id="resp_1", **said), "not kept"
        ),
    }


def langchain(address: str) -> dict[str, Callable[[], str]]:
    """Return LangChain's."""
    from langchain_openai import ChatOpenAI, OpenAI

    model = ChatOpenAI(model="gpt-4o", base_url=address, api_key="none", max_tokens=60, temperature=0, max_retries=0)
    texts = OpenAI(model="any", base_url=address, api_key="none", max_tokens=5, max_retries=0)
    short = model.bind(max_completion_tokens=12)

    def invoked() -> str:
        answer = short.invoke(QUESTION)
        assert answer.usage_metadata["output_tokens"] <= 12, answer
        return f"{len(answer.content)} characters, {answer.response_metadata['finish_reason']}"

    def stream() -> str:
        parts = [*short.stream(QUESTION, stream_usage=True)]
        usage = [part.usage_metadata for part in parts if part.usage_metadata]
        assert len(usage) == 1, usage
        return f"{len(''.join(part.content for part in parts))} characters, {usage[0]['output_tokens']} tokens"

    def told() -> str:
        answer = short.bind(logprobs=True).invoke(QUESTION)
        return logprobs(answer.response_metadata["logprobs"]["content"], answer.content, 0)

    def tools() -> str:
        (made,) = model.bind_tools(TOOLS, tool_choice="required").invoke(QUESTION).tool_calls
        return call(made["name"], made["args"])

    def structured(**more: Any) -> str:
        answer = model.with_structured_output(Count, **more).invoke(QUESTION)
        assert isinstance(answer, Count), answer
        return repr(answer)

    return {
        "ChatOpenAI.invoke": invoked,
        "ChatOpenAI.stream": stream,
        "ChatOpenAI.batch of 2": lambda: f"{len([*map(str, short.batch([QUESTION] * 2))])} answers",
        "with_structured_output": structured,
        "with_structured_output, by a function": lambda: structured(method="function_calling"),
        "bind_tools, `required`": tools,
        "bind, `logprobs`": told,
        "OpenAI.batch of 2": lambda: f"{len(texts.batch(['The sky is', 'The sea is']))} texts",
    }


def pydantic(address: str) -> dict[str, Callable[[], str]]:
    """Return Pydantic AI's, by conversations and by responses."""
    from pydantic_ai import Agent, NativeOutput
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider
    from pydantic_ai.settings import ModelSettings

    provider = OpenAIProvider(base_url=address, api_key="none")
    usual = ModelSettings(max_tokens=60, temperature=0.0)

    def run(kind: Any, output: Any = str) -> str:
        agent = Agent(kind("any", provider=provider), output_type=output, model_settings=usual, retries=3)
        found = agent.run_sync(QUESTION).output
        assert found if output is str else isinstance(found, Count), found
        return f"{len(found)} characters" if output is str else repr(found)

    kinds = {"chat": OpenAIChatModel, "responses": OpenAIResponsesModel}
    return {
        f"Agent, {name}, {what}": partial(run, kind, output)
        for name, kind in kinds.items()
        for what, output in (("text", str), ("a tool's output", Count), ("JSON schema", NativeOutput(Count)))
    }


def web_ui(address: str) -> dict[str, Callable[[], str]]:
    """Return Open WebUI's, as recorded, but short."""
    kinds = openai.types.chat.ChatCompletion, openai.types.chat.ChatCompletionChunk

    def ask(body: dict[str, Any]) -> str:
        most = {"max_completion_tokens" if "max_completion_tokens" in body else "max_tokens": 30}
        with httpx.stream("POST", f"{address}/chat/completions", json=body | most, timeout=600) as answer:
            lines = [line for line in answer.iter_lines() if line]
            kind = answer.headers["content-type"].partition(";")[0]
        if not body.get("stream"):
            assert kind == "application/json", kind
            whole = kinds[0].model_validate_json("".join(lines))
            return text(whole.choices[0], whole.choices[0].message.content, whole.usage, 30)
        assert (kind, lines[-1]) == ("text/event-stream", "data: [DONE]"), lines
        return streamed([kinds[1].model_validate_json(line.removeprefix("data: ")) for line in lines[:-1]], 30)

    recorded = ((name.partition(", "), body) for name, body in CHATS.items())
    return {name: lambda body=body: ask(body) for (client, _, name), body in recorded if client == "open webui"}


CLIENTS = {
    "OpenAI": official, "LangChain": langchain, "Pydantic AI": pydantic, "Open WebUI": web_ui,
}  # fmt: skip
"""The requests of each."""


def ask(client: str, address: str) -> list[dict[str, Any]]:
    """Return what a client's requests were answered, and whether that is right."""
    rows = []
    for name, send in CLIENTS[client](address).items():
        try:
            answer, right = send(), True
        except Exception as error:
            answer, right = f"{type(error).__name__}: {error}"[:1000], False
        rows.append({"client": client, "request": name, "answer": answer, "right": right})
        print(client, name, right, file=sys.stderr, flush=True)
    return rows


def main() -> None:
    logging.disable()
    print(json.dumps([row for client in CLIENTS for row in ask(client, sys.argv[1])]))


if __name__ == "__main__":
    main()
