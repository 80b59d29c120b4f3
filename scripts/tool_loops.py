"""Loops of agents with tools, by five clients: how many calls they could read.

    cactus serve MODEL.gguf --alias m &
    python scripts/tool_loops.py http://127.0.0.1:8000/v1 --loops 200 --output FILE
    python scripts/tool_loops.py http://127.0.0.1:8000/v1 --agents 8 --minutes 10

A loop asks a question, runs the functions that the model calls, sends their results, and ends with an answer, after at
most four turns, or with a call that the client cannot read. It needs the clients that it asks with, and nothing of this
package: openai, litellm, langchain-openai, pydantic-ai-slim[openai] and instructor. An answer that is cut by the limit
of tokens is counted apart. The result file is written after every loop, so the same command goes on where it stopped.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import os
import random
import sys
import threading
import time
import urllib.request
import warnings
from collections import Counter
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

TURNS, MAX_TOKENS = 4, 256
CITIES = ("Paris", "Rome", "Oslo", "Lima", "Cairo", "Delhi", "Quito", "Sofia")
Kind = Literal["rain", "wind", "sun"]


class Add(BaseModel):
    """Adds two numbers."""

    a: int = Field(ge=0, le=9999)
    b: int = Field(ge=0, le=9999)


class Weather(BaseModel):
    """Tells the weather of a city for some days."""

    city: str = Field(max_length=24)
    days: int = Field(ge=1, le=9)
    kind: Kind = "sun"


class Note(BaseModel):
    """Writes a note down."""

    text: str = Field(max_length=60)
    tags: list[Annotated[str, Field(max_length=12)]] = Field(default=[], max_length=2)


class Now(BaseModel):
    """Tells the time."""


MODELS: dict[str, type[BaseModel]] = {"add": Add, "weather": Weather, "note": Note, "now": Now}
RESULTS: dict[str, Callable[[dict[str, Any]], str]] = {
    "add": lambda given: str(given["a"] + given["b"]),
    "weather": lambda given: f"{given['city']}: sun, 20 degrees, {given['days']} days",
    "note": lambda given: "written",
    "now": lambda given: "12:30",
}
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {"name": name, "description": each.__doc__, "parameters": each.model_json_schema()},
    }
    for name, each in MODELS.items()
]


def question(chance: random.Random) -> str:
    city, a, b = chance.choice(CITIES), chance.randrange(1000), chance.randrange(1000)
    return chance.choice([
        f"What is the weather in {city} for {1 + a % 9} days? Use a tool.",
        f"Add {a} and {b} with a tool, then say the sum.",
        f"Write a note that {city} is nice, and tell me the time. Use the tools.",
        f"Call weather for {city} and for {chance.choice(CITIES)}, 3 days each, then add {a} and {b}.",
    ])  # fmt: skip


class Loops:
    """What the loops of one client came to."""

    def __init__(self, address: str, first: str = "auto") -> None:
        self.first = first  # the choice of tools in the first turn
        self.address, self.counts, self.wrong, self.lock = address, Counter[str](), list[str](), threading.Lock()

    def choice(self, turn: int) -> dict[str, Any]:
        """Return what a turn's request says of calls; one call, where it has to call."""
        if turn or self.first == "auto":
            return {"tool_choice": "auto"}
        return {"tool_choice": self.first, "parallel_tool_calls": False}

    def note(self, name: str) -> None:
        with self.lock:
            self.counts[name] += 1

    def read(self, name: str, arguments: str, *, cut: bool) -> dict[str, Any] | None:
        """Return a call's arguments, as a client parses them and its function's model checks them.

        None for a call that cannot be read, or that the answer's limit cut.
        """
        try:
            given = json.loads(arguments)
            MODELS[name].model_validate(given)
        except KeyError:
            self.misread(f"there is no function {name!r}")
        except ValueError as error:
            if cut:
                self.note("cut")
            else:
                self.misread(f"{name}: {arguments!r}: {error}")
        else:
            self.parsed()
            return dict(given)
        return None

    def parsed(self) -> None:
        self.note("calls")
        self.note("parsed")

    def misread(self, what: str) -> None:
        """Note a call that the client cannot read."""
        self.note("calls")
        self.failed(what)

    def failed(self, what: str) -> None:
        self.note("failed")
        with self.lock:
            self.wrong.append(what[:400])


def by_openai(loops: Loops, text: str, seed: int) -> None:
    import openai

    client = openai.OpenAI(base_url=loops.address, api_key="none", max_retries=0, timeout=600)
    _by_messages(loops, text, seed, lambda **body: client.chat.completions.create(model="m", **body))


def by_litellm(loops: Loops, text: str, seed: int) -> None:
    import litellm

    litellm.suppress_debug_info = True

    def ask(**body: Any) -> Any:
        body = {"model": "openai/m", "api_base": loops.address, "api_key": "none", "timeout": 600} | body
        chunks = [*litellm.completion(stream=True, **body)]
        return litellm.stream_chunk_builder(chunks)

    _by_messages(loops, text, seed, ask)


def _by_messages(loops: Loops, text: str, seed: int, ask: Callable[..., Any]) -> None:
    messages: list[Any] = [{"role": "user", "content": text}]
    for turn in range(TURNS):
        sampled = {"temperature": 1.0, "max_tokens": MAX_TOKENS, "seed": seed + turn}
        choice = ask(messages=messages, tools=TOOLS, **loops.choice(turn), **sampled).choices[0]
        calls = choice.message.tool_calls or []
        messages.append(choice.message.model_dump(exclude_none=True))
        for place, call in enumerate(calls):
            cut = choice.finish_reason == "length" and place == len(calls) - 1
            given = loops.read(call.function.name, call.function.arguments, cut=cut)
            if given is None:
                return
            result = RESULTS[call.function.name](given)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        if not calls:
            return loops.note("completed")
    loops.note("turns over")


def by_langchain(loops: Loops, text: str, seed: int) -> None:
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_openai import ChatOpenAI

    messages: list[Any] = [HumanMessage(text)]
    for turn in range(TURNS):
        made: Any = ChatOpenAI(
            model="m", base_url=loops.address, api_key="none", max_retries=0, max_tokens=MAX_TOKENS, temperature=1.0,
            seed=seed + turn, timeout=600,
        )  # fmt: skip
        answer = made.bind_tools(TOOLS, **loops.choice(turn)).invoke(messages)
        messages.append(answer)
        cut = answer.response_metadata["finish_reason"] == "length"
        if cut and answer.invalid_tool_calls:
            return loops.note("cut")
        for call in answer.invalid_tool_calls:
            return loops.misread(f"{call['name']}: {call['args']!r}: {call['error']}")
        for call in answer.tool_calls:
            given = loops.read(call["name"], json.dumps(call["args"]), cut=False)
            if given is None:
                return
            messages.append(ToolMessage(RESULTS[call["name"]](given), tool_call_id=call["id"]))
        if not answer.tool_calls:
            return loops.note("completed")
    loops.note("turns over")


def by_pydantic_ai(loops: Loops, text: str, seed: int) -> None:
    from pydantic_ai import Agent
    from pydantic_ai.exceptions import IncompleteToolCall, UnexpectedModelBehavior, UsageLimitExceeded
    from pydantic_ai.messages import ModelResponse
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider
    from pydantic_ai.usage import UsageLimits

    # in every turn, because that is all that it takes
    forced = {} if loops.first == "auto" else {"extra_body": loops.choice(0)}
    agent: Any = Agent(
        OpenAIChatModel("m", provider=OpenAIProvider(base_url=loops.address, api_key="none")), retries=0,
        model_settings={"temperature": 1.0, "max_tokens": MAX_TOKENS, "seed": seed, "timeout": 600} | forced,
    )  # fmt: skip

    def called(name: str, given: BaseModel) -> str:
        loops.parsed()
        return RESULTS[name](given.model_dump())

    @agent.tool_plain
    def add(given: Add) -> str:
        """Add two numbers."""
        return called("add", given)

    @agent.tool_plain
    def weather(given: Weather) -> str:
        """Tell the weather of a city for some days."""
        return called("weather", given)

    @agent.tool_plain
    def note(given: Note) -> str:
        """Write a note down."""
        return called("note", given)

    @agent.tool_plain
    def now() -> str:
        """Tell the time."""
        return called("now", Now())

    from pydantic_ai import capture_run_messages

    with capture_run_messages() as messages:
        try:
            agent.run_sync(text, usage_limits=UsageLimits(request_limit=TURNS))
            loops.note("completed")
        except UsageLimitExceeded:
            loops.note("turns over")
        except IncompleteToolCall:
            loops.note("cut")
        except UnexpectedModelBehavior as error:
            cut = any(isinstance(each, ModelResponse) and each.finish_reason == "length" for each in messages[-2:])
            if cut:
                return loops.note("cut")
            loops.misread(f"{error}: {error.__cause__}: {messages[-1]}")


def by_instructor(loops: Loops, text: str, seed: int) -> None:
    """Ask for one call of a function that is named, whose model it makes of it."""
    import instructor
    import openai
    from instructor.core.exceptions import IncompleteOutputException

    client: Any = instructor.from_openai(
        openai.OpenAI(base_url=loops.address, api_key="none", max_retries=0, timeout=600),
        mode=(instructor.Mode.TOOLS, instructor.Mode.RESPONSES_TOOLS)[seed // 100 % 2],
    )
    wanted = (Add, Weather, Note)[seed // 100 % 3]
    try:
        made = client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": text}], response_model=wanted, max_retries=0,
            temperature=1.0, max_tokens=MAX_TOKENS,
        )  # fmt: skip
    except IncompleteOutputException:
        return loops.note("cut")
    except Exception as error:  # its own, of several kinds
        if getattr(getattr(error, "last_completion", None), "status", "") == "incomplete":
            return loops.note("cut")
        return loops.misread(f"{wanted.__name__}: {type(error).__name__}: {error}")
    assert isinstance(made, wanted)
    loops.parsed()
    loops.note("completed")


CLIENTS: dict[str, Callable[[Loops, str, int], None]] = {
    "openai": by_openai, "litellm": by_litellm, "langchain-openai": by_langchain, "pydantic-ai-slim": by_pydantic_ai,
    "instructor": by_instructor,
}  # fmt: skip


def answers(address: str) -> bool:
    """Whether a server still answers."""
    try:
        with urllib.request.urlopen(f"{address}/models", timeout=60):
            return True
    except OSError:
        return False


def run(given: argparse.Namespace, found: dict[str, Loops], number: int, save: Callable[[int], None]) -> bool:
    """Ask until every client has its loops, or the time is over; return whether the server answered to the end.

    The clients take turns, from loop ``number`` on.
    """
    numbers, lock, end = itertools.count(number), threading.Lock(), time.monotonic() + 60 * (given.minutes or 1e6)
    begun, gone = {name: found[name].counts["loops"] for name in given.clients}, threading.Event()

    def next_loop() -> int | None:
        with lock:
            while (
                not gone.is_set()
                and time.monotonic() < end
                and (given.loops is None or min(begun.values()) < given.loops)
            ):
                number = next(numbers)
                name = given.clients[number % len(given.clients)]
                if given.loops is None or begun[name] < given.loops:
                    begun[name] += 1
                    return number
        return None

    def agent() -> None:
        while (number := next_loop()) is not None:
            name = given.clients[number % len(given.clients)]
            text = question(random.Random(number // len(given.clients)))
            loop = Loops(given.address, given.first)
            try:
                CLIENTS[name](loop, text, 100 * number)
            except Exception as error:
                loop.failed(f"{type(error).__name__}: {error}")
            if loop.counts["failed"] and not answers(given.address):
                return gone.set()  # what it failed by says nothing of calls
            with lock:
                found[name].counts.update(loop.counts + Counter(loops=1))
                found[name].wrong.extend(loop.wrong)
                save(number)

    # daemons, so that Ctrl-C ends the run: what is finished stands in the result file
    threads = [threading.Thread(target=agent, daemon=True) for _ in range(given.agents)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return not gone.is_set()


NAMES = ("loops", "calls", "parsed", "failed", "cut", "completed", "turns over")


def begin(given: argparse.Namespace) -> tuple[dict[str, Any], dict[str, Loops]]:
    """Return the result so far and what each client has come to, from the result file where there is one."""
    found = {name: Loops(given.address, given.first) for name in given.clients}
    settings = {
        "model": given.model, "temperature": 1.0, "max_tokens": MAX_TOKENS, "turns": TURNS, "first": given.first,
        "agents": given.agents, "versions": {name: version(name) for name in given.clients},
    }  # fmt: skip
    result = settings | {"seconds": 0, "next": 0}
    if given.output is not None and given.output.exists():
        result = json.loads(given.output.read_text())
        if not isinstance(result, dict) or "clients" not in result:
            raise ValueError("it is no result of this script: give another --output")
        other = {name: result.get(name) for name in settings if result.get(name) != settings[name]}
        if other:
            raise ValueError(f"it is of a run with {other}: give another --output, or the same settings")
        for name, each in found.items():
            before = result["clients"][name]
            each.counts.update({count: before[count] for count in NAMES})
            each.wrong.extend(before["wrong"])
    return result, found


def main() -> int:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("address", help="of a server, such as http://127.0.0.1:8000/v1")
    made.add_argument("--loops", type=int, help="by each client")
    made.add_argument("--agents", type=int, default=1, help="at once")
    made.add_argument("--minutes", type=float, help="after which no loop begins")
    made.add_argument("--clients", nargs="+", choices=[*CLIENTS], default=[*CLIENTS])
    made.add_argument("--first", choices=("auto", "required"), default="auto", help="choice of tools in the first turn")
    made.add_argument("--model", help="what the server serves, for the result file")
    made.add_argument("--output", type=Path, help="result file; what it has is not asked again")
    given = made.parse_args()
    if given.loops is None and given.minutes is None:
        made.error("give --loops or --minutes")
    if given.agents < 1:
        made.error(f"--agents must be at least 1, but is {given.agents}")
    try:
        result, found = begin(given)
    except (ValueError, OSError) as error:
        made.error(f"{given.output}: {error}")
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    before, began = result["seconds"], time.perf_counter()

    def save(number: int) -> None:
        """Bring the result up to date with loop ``number``, and write it where that is asked for."""
        result["next"] = max(result["next"], number + 1)
        result["seconds"] = before + round(time.perf_counter() - began)
        result["clients"] = {
            name: {each: loops.counts[each] for each in NAMES} | {"wrong": loops.wrong[:20]}
            for name, loops in found.items()
        }
        count = sum(loops.counts["loops"] for loops in found.values())
        print(f"\r{count} loops in {result['seconds']} s", end="", file=sys.stderr, flush=True)
        if given.output is not None:
            whole = given.output.with_name(given.output.name + ".new")
            whole.write_text(json.dumps(result, indent=1) + "\n")
            whole.replace(given.output)

    try:
        if not run(given, found, result["next"], save):
            print(f"\n{given.address} does not answer any more: the same command goes on when it does", file=sys.stderr)
            return 1
    except KeyboardInterrupt:
        print(f"\nstopped: {given.output or 'nothing'} has what is finished", file=sys.stderr)
        return 130
    print(json.dumps(result, indent=1))
    return 1 if any(loops.counts["failed"] for loops in found.values()) else 0


if __name__ == "__main__":
    raise SystemExit(main())
