"""Our server beside llama.cpp's: the same files, lengths and ``p_min``, prompt after prompt in turn.

    python beside_llama_server.py target.gguf draft.gguf --llama-server PATH --data FOLDER

Each answers the first GSM8K questions in chat with the same number of proposals a step, none of which is left out for
being unsure (``p_min`` 0), at temperature 0 and, without cuts, at temperature 1. Processor time is that of the serving
process; decoding is what comes after the first token. With ``--starts`` each is started anew so often, and timed until
it answers that it is there, and until it has answered a conversation; ``--llama-server`` may then be
missing. ``--before`` names the ``src`` of another checkout, whose server is started too.

    python beside_llama_server.py target.gguf --schemas 10 --llama-server PATH --output FILE

asks instead for JSON of some of the schemas of forced_tokens.py, and the same prompts for free text, at temperature 0
without proposals of a draft. Each prompt is read before, so that what is timed is the answer. Steps with forced tokens
and without, and the time of masks, are counted as in forced_tokens.py.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from statistics import median
from typing import Any

from forced_tokens import SCHEMAS, both_ways, total
from llama_cpp import Llama
from pairing import benchmark
from servers import Answer, Server, cactus, llama_server, running

from cactus_decoding import load_pair

NO_CUTS = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
THEIRS, OURS = "llama.cpp's server", "cactus serve"
WAYS = ((THEIRS, "", 0.0), (OURS, "lossless", 0.0), (THEIRS, "", 1.0), (OURS, "lossless", 1.0),
        (OURS, "cactus:delta=1", 1.0))  # fmt: skip
"""Server, rule and temperature."""
LOADED = "files loaded"
"""By llama-cpp-python, which is imported before."""
IMPORTED = {
    "llama_cpp imported": "import llama_cpp",
    "our server imported": "from cactus_decoding.cli import app; from cactus_decoding.engines.openai import serving; "
    "from cactus_decoding.engines.llama_cpp import server",
    "torch imported": "import torch",
}
"""Processes that do no more: where the time goes."""


def ask(server: Server, content: str, tokens: int, **more: Any) -> Answer:
    """Return the answer to a message, without cuts and seeded."""
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": tokens, "seed": 1, "temperature": 0}
    return server.chat(body | NO_CUTS | more)


def commands(given: Namespace, proposals: int) -> dict[str, list[str]]:
    """Return how the servers are started that are compared."""
    draft = "suffix" if given.draft is None else f"{given.draft}:context_size={given.context}"
    options = ["--threads", str(given.threads), "--num-speculative-tokens", str(proposals)]
    ours = cactus(f"{given.target}:context_size={given.context}", draft, *options)
    found = {OURS: ours}
    if given.before is not None:
        found[f"{OURS} before"] = ["env", f"PYTHONPATH={given.before}", *ours]
    if given.llama_server is not None:
        limit = ["--spec-draft-n-max", str(proposals), "--spec-draft-p-min", "0"] if proposals else []
        shape = given.draft if proposals else None, given.threads, given.context
        found[THEIRS] = llama_server(given.llama_server, given.target, *shape, *limit)
    return found


@contextmanager
def warm_servers(commands: dict[str, list[str]]) -> Iterator[dict[str, Server]]:
    """Run servers that have answered once."""
    with ExitStack() as stack:
        servers = {name: stack.enter_context(running(each)) for name, each in commands.items()}
        for server in servers.values():
            ask(server, "Hi", 8)
        yield servers


def started(command: list[str]) -> dict[str, float]:
    """Return the seconds until a server answers, and until it has answered a conversation."""
    with running(command) as server:
        took = {"seconds": server.seconds, "processor": server.processor_seconds()}
        first = ask(server, "Hi", 1).seconds
        return took | {
            "first_answer": server.seconds + first, "first_answer_processor": server.processor_seconds()
        }  # fmt: skip


def took(action: Callable[[], object]) -> dict[str, float]:
    """Return the seconds of an action, on the wall and of the processor, its processes included."""

    def used() -> float:
        of_children = getrusage(RUSAGE_CHILDREN)
        return time.process_time() + of_children.ru_utime + of_children.ru_stime

    began, before = time.perf_counter(), used()
    action()
    return {"seconds": time.perf_counter() - began, "processor": used() - before}


def starts(given: Namespace) -> Iterator[dict[str, Any]]:
    """Yield how long servers take to answer and llama.cpp to load the files, in turn."""
    paths = [str(path) for path in (given.target, given.draft)]
    shape = {"n_ctx": given.context, "n_threads": given.threads, "verbose": False}
    code = f"from llama_cpp import Llama; kept = [Llama(path, **{shape}) for path in {paths}]"
    ways: dict[str, Callable[[], dict[str, float]]] = {
        name: lambda command=command: started(command)
        for name, command in commands(given, max(given.proposals)).items()
    }
    ways[LOADED] = lambda: took(lambda: [Llama(path, **shape) for path in paths])
    for name, program in {f"{LOADED} by a process of its own": code, **IMPORTED}.items():
        process = [sys.executable, "-c", program]
        ways[name] = lambda process=process: took(lambda: subprocess.run(process, check=True))
    found: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
    for _ in range(given.starts):
        for name, way in ways.items():
            found[name].append(way())
    for name, taken in found.items():
        print(name, {clock: round(median(each[clock] for each in taken), 2) for clock in taken[0]})
    yield {"starts": found}


def schemas(given: Namespace) -> Iterator[dict[str, Any]]:
    """Yield what servers took for JSON and for free text, in turn, and our steps and masks."""
    some, rows = dict(list(SCHEMAS.items())[: given.schemas]), list[dict[str, Any]]()
    asked = {name: f"Write something that fits the schema. {json.dumps(schema)}" for name, schema in some.items()}
    with warm_servers(commands(given, 0)) as servers:
        for name, schema in some.items():
            form = {"type": "json_schema", "json_schema": {"name": "it", "schema": schema}}
            for more in ({}, {"response_format": form}):
                for who, server in servers.items():
                    ask(server, asked[name], 1)  # reads the prompt
                    answer = ask(server, asked[name], given.tokens, **more)
                    if more and answer.finish_reason == "stop":
                        json.loads(answer.text)
                    found = {key: getattr(answer, key) for key in ("tokens", "seconds", "processor", "finish_reason")}
                    rows.append({"schema": name, "server": who, "json": bool(more)} | found)
                    print(rows[-1], flush=True)
    speeds = []
    for who, of_json in dict.fromkeys((row["server"], row["json"]) for row in rows):
        each = [row for row in rows if (row["server"], row["json"]) == (who, of_json)]
        tokens, seconds, used = (sum(row[name] for row in each) for name in ("tokens", "seconds", "processor"))
        speed = {"tokens": tokens, "tokens_per_second": tokens / seconds, "per_processor_second": tokens / used}
        speeds.append({"server": who, "json": of_json} | speed)
        print(speeds[-1], flush=True)
    pair = load_pair(f"{given.target}:threads={given.threads}", "suffix")
    steps = [both_ways(pair, name, asked[name], 0, 1, chat=True) for name in some]
    yield {"speeds": speeds, "totals": total(steps, 0), "rows": rows, "steps": steps}


def in_chat(given: Namespace) -> Iterator[dict[str, Any]]:
    """Yield what answers to GSM8K's questions took, prompt after prompt in turn."""
    lines, found = (given.data / "gsm8k_test.jsonl").read_text().splitlines()[: given.prompts], list[dict[str, Any]]()
    for proposals in given.proposals:
        with warm_servers(commands(given, proposals)) as servers:
            for number, line in enumerate(lines):
                for name, rule, temperature in WAYS if proposals else WAYS[:-1]:
                    ours = {"acceptance_rule": rule, "acceptance_report": True} if rule else {}
                    question = json.loads(line)["question"]
                    answer = ask(servers[name], question, given.tokens, temperature=temperature, **ours)
                    way = {"server": name, "rule": rule, "temperature": temperature, "proposals": proposals}
                    found.append({"prompt": number} | way | counts_of(answer))
                    print(found[-1], flush=True)
                yield {"answers": found}


def counts_of(answer: Answer) -> dict[str, Any]:
    """Return what an answer took, and its proposals, by what either server tells."""
    timings = answer.extra.get("timings", {})
    report = answer.extra.get("metrics", {}).get("speculative_decoding", {}).get("acceptance_report", {})
    return {
        "tokens": answer.tokens,
        "drafted": timings.get("draft_n", sum(report.get("drafted_by_position", ()))),
        "accepted": timings.get("draft_n_accepted", sum(report.get("accepted_by_position", ()))),
        "seconds": round(answer.seconds - answer.first, 3),
        "processor": round(answer.processor - answer.first_processor, 3),
        "first_processor": round(answer.first_processor, 3),
    }


def measure(given: Namespace) -> Iterator[dict[str, Any]]:
    return schemas(given) if given.schemas else starts(given) if given.starts else in_chat(given)


if __name__ == "__main__":
    path = {"type": Path}
    benchmark(
        __doc__, "beside_llama_server", measure, target=Path,
        draft=(None, "left out with --schemas", path, {"nargs": "?", "positional": True}),
        llama_server=(None, path),
        before=(None, "src of a checkout whose server is started too", path),
        data=(None, "folder of gsm8k_test.jsonl", path),
        prompts=8,
        tokens=64,
        proposals=([0, 1, 3, 7], "a step; 0 for no draft"),
        threads=1,
        context=1024,
        starts=(0, "how often each is started instead"),
        schemas=(0, "how many of the schemas to answer by instead"),
    )  # fmt: skip
