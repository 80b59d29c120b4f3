"""Our server beside llama.cpp's: the same files, lengths and ``p_min``, prompt after prompt in turn.

    python beside_llama_server.py target.gguf draft.gguf --llama-server PATH --data FOLDER

Each answers the first GSM8K questions in chat with the same number of proposals a step, none of which is left out for
being unsure (``p_min`` 0), at temperature 0 and, without cuts, at temperature 1. Processor time is that of the serving
process; decoding is what comes behind the first token. With ``--starts`` each is started anew so often, and timed until
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
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from statistics import median
from typing import Any

from forced_tokens import SCHEMAS, answers, total
from llama_cpp import Llama
from pairing import benchmark
from servers import Server, cactus, llama_server, running

from cactus_decoding import load_pair
from cactus_decoding.core.models.tokenizers import as_chat_prompt

NO_CUTS = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
WAYS: tuple[tuple[str, str, float], ...] = (
    ("llama.cpp's server", "", 0.0), ("cactus serve", "lossless", 0.0), ("llama.cpp's server", "", 1.0),
    ("cactus serve", "lossless", 1.0), ("cactus serve", "cactus:delta=1", 1.0),
)  # fmt: skip
"""Server, rule and temperature."""
LOADED, LOADED_ALONE = "files loaded", "files loaded by a process of its own"
"""By llama-cpp-python, which is imported before in the one and not in the other."""
IMPORTED = {
    "llama_cpp imported": "import llama_cpp",
    "our server imported": "from cactus_decoding.cli import app; from cactus_decoding.engines.openai import serving; "
    "from cactus_decoding.engines.llama_cpp import server",
    "torch imported": "import torch",
}
"""Processes that do no more: where the time goes."""


def asked(server: Server, question: str, rule: str, temperature: float, tokens: int) -> dict[str, Any]:
    """Return what an answer took."""
    body = {"messages": [{"role": "user", "content": question}], "max_tokens": tokens, "seed": 1}
    body |= {"temperature": temperature, **NO_CUTS}
    answer = server.chat(body | ({"acceptance_rule": rule, "acceptance_report": True} if rule else {}))
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


def commands(given: Namespace, proposals: int) -> dict[str, list[str]]:
    """Return how the servers are started that are compared."""
    draft = "suffix" if given.draft is None else f"{given.draft}:context_size={given.context}"
    options = ["--threads", str(given.threads), "--num-speculative-tokens", str(proposals)]
    ours = cactus(f"{given.target}:context_size={given.context}", draft, *options)
    found = {"cactus serve": ours}
    if given.before is not None:
        found["cactus serve before"] = ["env", f"PYTHONPATH={given.before}", *ours]
    if given.llama_server is not None:
        limit = ["--spec-draft-n-max", str(proposals), "--spec-draft-p-min", "0"] if proposals else []
        shape = given.draft if proposals else None, given.threads, given.context
        found["llama.cpp's server"] = llama_server(given.llama_server, given.target, *shape, *limit)
    return found


@contextmanager
def warm_servers(commands: dict[str, list[str]]) -> Iterator[dict[str, Server]]:
    """Run servers that have answered once."""
    with ExitStack() as stack:
        servers = {name: stack.enter_context(running(each)) for name, each in commands.items()}
        for server in servers.values():
            server.chat({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8})
        yield servers


def starts(given: Namespace) -> Iterator[dict[str, Any]]:
    """Yield how long servers take to answer and llama.cpp to load the files, in turn."""
    servers, paths = commands(given, max(given.proposals)), [str(path) for path in (given.target, given.draft)]
    shape = {"n_ctx": given.context, "n_threads": given.threads, "verbose": False}
    code = f"from llama_cpp import Llama; kept = [Llama(path, **{shape}) for path in {paths}]"
    alone = {LOADED_ALONE: code, **IMPORTED}
    found: dict[str, list[dict[str, float]]] = {name: [] for name in (*servers, LOADED, *alone)}
    for _ in range(given.starts):
        for name, command in servers.items():
            with running(command) as server:
                took = {"seconds": server.seconds, "processor": server.processor_seconds()}
                began = time.perf_counter()
                server.chat({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1, "temperature": 0})
                took["first_answer"] = server.seconds + time.perf_counter() - began
                found[name].append(took | {"first_answer_processor": server.processor_seconds()})
        began, used = time.perf_counter(), time.process_time()
        kept = [Llama(path, **shape) for path in paths]
        found[LOADED].append({"seconds": time.perf_counter() - began, "processor": time.process_time() - used})
        del kept
        for name, asked in alone.items():
            began, before = time.perf_counter(), getrusage(RUSAGE_CHILDREN)
            subprocess.run([sys.executable, "-c", asked], check=True)
            ended = getrusage(RUSAGE_CHILDREN)
            taken = ended.ru_utime + ended.ru_stime - before.ru_utime - before.ru_stime
            found[name].append({"seconds": time.perf_counter() - began, "processor": taken})
    for name, taken in found.items():
        print(name, {clock: round(median(each[clock] for each in taken), 2) for clock in taken[0]})
    yield {"starts": found}


def constrained(server: Server, prompt: str, schema: Any, tokens: int) -> dict[str, Any]:
    """Return what an answer took whose prompt was read before; one in free text if there is no schema."""
    body: dict[str, Any] = {"messages": [{"role": "user", "content": prompt}], "temperature": 0, "seed": 1} | NO_CUTS
    server.chat(body | {"max_tokens": 1})
    if schema is not None:
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "it", "schema": schema}}
    answer = server.chat(body | {"max_tokens": tokens})
    if schema is not None and answer.finish_reason == "stop":
        json.loads(answer.text)
    found = {"tokens": answer.tokens, "seconds": answer.seconds, "processor": answer.processor}
    return found | {"finish_reason": answer.finish_reason}


def schemas(given: Namespace) -> Iterator[dict[str, Any]]:
    """Yield what servers took for JSON and for free text, in turn, and our steps and masks."""
    some, rows = dict(list(SCHEMAS.items())[: given.schemas]), list[dict[str, Any]]()
    asked = {name: f"Write something that fits the schema. {json.dumps(schema)}" for name, schema in some.items()}
    with warm_servers(commands(given, 0)) as servers:
        for name, schema in some.items():
            for form in (None, schema):
                for who, server in servers.items():
                    found = constrained(server, asked[name], form, given.tokens)
                    rows.append({"schema": name, "server": who, "json": form is not None} | found)
                    print(rows[-1], flush=True)
    speeds = []
    for who, form in dict.fromkeys((row["server"], row["json"]) for row in rows):
        each = [row for row in rows if (row["server"], row["json"]) == (who, form)]
        tokens, seconds, used = (sum(row[name] for row in each) for name in ("tokens", "seconds", "processor"))
        speed = {"tokens": tokens, "tokens_per_second": tokens / seconds, "per_processor_second": tokens / used}
        speeds.append({"server": who, "json": form} | speed)
        print(speeds[-1], flush=True)
    pair, steps = load_pair(f"{given.target}:threads={given.threads}", "suffix"), list[dict[str, Any]]()
    for name, schema in some.items():
        prompt = as_chat_prompt(pair.tokenizer, asked[name])
        ways = {way: answers(pair, schema, prompt, 0, 1, forces=way == "forced") for way in ("plain", "forced")}
        steps.append({"schema": name, "proposals": 0} | ways)
    totals = total(steps, 0)
    print(totals, flush=True)
    yield {"speeds": speeds, "totals": totals, "rows": rows, "steps": steps}


def in_chat(given: Namespace) -> Iterator[dict[str, Any]]:
    """Yield what answers to GSM8K's questions took, prompt after prompt in turn."""
    lines, found = (given.data / "gsm8k_test.jsonl").read_text().splitlines()[: given.prompts], list[dict[str, Any]]()
    for proposals in given.proposals:
        with warm_servers(commands(given, proposals)) as servers:
            for number, line in enumerate(lines):
                for name, rule, temperature in WAYS if proposals else WAYS[:-1]:
                    taken = asked(servers[name], json.loads(line)["question"], rule, temperature, given.tokens)
                    way = {"server": name, "rule": rule, "temperature": temperature, "proposals": proposals}
                    found.append({"prompt": number} | way | taken)
                    print(found[-1], flush=True)
                yield {"answers": found}


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
