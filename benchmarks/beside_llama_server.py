"""Our server beside llama.cpp's: the same files, lengths and ``p_min``, prompt after prompt in turn.

    python beside_llama_server.py target.gguf draft.gguf --llama-server PATH --data FOLDER --output FILE

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

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from statistics import median
from typing import Any

from forced_tokens import SCHEMAS, answers, total
from servers import Server, cactus, llama_server, running

from cactus_decoding import load_pair
from cactus_decoding.core.files.provenance import provenance
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


def starts(
    commands: dict[str, list[str]], load: Callable[[], object], alone: dict[str, str], count: int
) -> dict[str, list[dict[str, float]]]:
    """Return how long servers take to answer and llama.cpp to load the files, in turn."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in (*commands, LOADED, *alone)}
    for _ in range(count):
        for name, command in commands.items():
            with running(command) as server:
                took = {"seconds": server.seconds, "processor": server.processor_seconds()}
                began = time.perf_counter()
                server.chat({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1, "temperature": 0})
                took["first_answer"] = server.seconds + time.perf_counter() - began
                found[name].append(took | {"first_answer_processor": server.processor_seconds()})
        began, used = time.perf_counter(), time.process_time()
        load()
        taken = {"seconds": time.perf_counter() - began, "processor": time.process_time() - used}
        found[LOADED].append(taken)
        for name, code in alone.items():
            began, used = time.perf_counter(), getrusage(RUSAGE_CHILDREN)
            subprocess.run([sys.executable, "-c", code], check=True)
            ended = getrusage(RUSAGE_CHILDREN)
            taken = ended.ru_utime + ended.ru_stime - used.ru_utime - used.ru_stime
            found[name].append({"seconds": time.perf_counter() - began, "processor": taken})
    return found


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


def schemas(given: argparse.Namespace, commands: dict[str, list[str]]) -> dict[str, Any]:
    """Return what servers took for JSON and for free text, in turn, and our steps and masks."""
    some, rows = dict(list(SCHEMAS.items())[: given.schemas]), list[dict[str, Any]]()
    with ExitStack() as stack:
        servers = {name: stack.enter_context(running(each)) for name, each in commands.items()}
        for server in servers.values():
            server.chat({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8})
        for name, schema in some.items():
            prompt = f"Write something that fits the schema. {json.dumps(schema)}"
            for form in (None, schema):
                for who, server in servers.items():
                    found = constrained(server, prompt, form, given.tokens)
                    rows.append({"schema": name, "server": who, "json": form is not None} | found)
                    print(rows[-1], flush=True)
    speeds = []
    for who in commands:
        for form in (False, True):
            each = [row for row in rows if row["server"] == who and row["json"] == form]
            tokens, seconds, used = (sum(row[name] for row in each) for name in ("tokens", "seconds", "processor"))
            speed = {"tokens": tokens, "tokens_per_second": tokens / seconds, "per_processor_second": tokens / used}
            speeds.append({"server": who, "json": form} | speed)
            print(speeds[-1], flush=True)
    pair, steps = load_pair(f"{given.target}:threads={given.threads}", "suffix"), list[dict[str, Any]]()
    for name, schema in some.items():
        prompt = as_chat_prompt(pair.tokenizer, f"Write something that fits the schema. {json.dumps(schema)}")
        ways = {
            "forced" if forces else "plain": answers(pair, schema, prompt, 0, 1, forces=forces)
            for forces in (False, True)
        }
        steps.append({"schema": name, "proposals": 0} | ways)
    totals = total(steps, 0)
    print(totals, flush=True)
    return {"speeds": speeds, "totals": totals, "rows": rows, "steps": steps}


def main() -> None:
    """Print what is found as it comes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("draft", type=Path, nargs="?", help="left out with --schemas")
    parser.add_argument("--llama-server", type=Path)
    parser.add_argument("--before", type=Path, help="src of a checkout whose server is started too")
    parser.add_argument("--data", type=Path, help="folder of gsm8k_test.jsonl")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--proposals", type=int, nargs="+", default=[0, 1, 3, 7], help="a step; 0 for no draft")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--starts", type=int, default=0, help="how often each is started instead")
    parser.add_argument("--schemas", type=int, default=0, help="how many of the schemas to answer by instead")
    parser.add_argument("--output", type=Path, required=True)
    given = parser.parse_args()

    def commands(proposals: int) -> dict[str, list[str]]:
        limit = ["--spec-draft-n-max", str(proposals), "--spec-draft-p-min", "0"] if proposals else []
        draft = "suffix" if given.draft is None else f"{given.draft}:context_size={given.context}"
        options = ["--threads", str(given.threads), "--num-speculative-tokens", str(proposals)]
        ours = cactus(f"{given.target}:context_size={given.context}", draft, *options)
        found = {"cactus serve": ours}
        if given.before is not None:
            found["cactus serve before"] = ["env", f"PYTHONPATH={given.before}", *ours]
        if given.llama_server is not None:
            model = given.draft if proposals else None
            found["llama.cpp's server"] = llama_server(
                given.llama_server, given.target, model, given.threads, given.context, *limit
            )
        return found

    said = {name: value.name if isinstance(value, Path) else value for name, value in vars(given).items()}
    result: dict[str, Any] = {}

    def write() -> None:
        given.output.write_text(json.dumps(result | {"provenance": provenance(said)}, indent=1) + "\n")

    if given.schemas:
        result |= schemas(given, commands(0))
        return write()
    if given.starts:
        from llama_cpp import Llama

        def load() -> list[Llama]:
            shape = {"n_ctx": given.context, "n_threads": given.threads, "verbose": False}
            return [Llama(str(path), **shape) for path in (given.target, given.draft)]

        shape = f"n_ctx={given.context}, n_threads={given.threads}, verbose=False"
        paths = [str(path) for path in (given.target, given.draft)]
        code = f"from llama_cpp import Llama; kept = [Llama(path, {shape}) for path in {paths}]"
        alone = {LOADED_ALONE: code, **IMPORTED}
        result["starts"] = starts(commands(max(given.proposals)), load, alone, given.starts)
        for name, taken in result["starts"].items():
            print(name, {clock: round(median(each[clock] for each in taken), 2) for clock in taken[0]})
        return write()
    lines = (given.data / "gsm8k_test.jsonl").read_text().splitlines()[: given.prompts]
    result["answers"] = []
    for proposals in given.proposals:
        with ExitStack() as stack:
            servers = {name: stack.enter_context(running(each)) for name, each in commands(proposals).items()}
            for server in servers.values():
                server.chat({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8})
            for number, line in enumerate(lines):
                for name, rule, temperature in WAYS if proposals else WAYS[:-1]:
                    found = asked(servers[name], json.loads(line)["question"], rule, temperature, given.tokens)
                    way = {"server": name, "rule": rule, "temperature": temperature, "proposals": proposals}
                    result["answers"].append({"prompt": number} | way | found)
                    print(number, proposals, f"{name}, {rule or 'matching'}, {temperature:g}", found, flush=True)
                write()
    return None


if __name__ == "__main__":
    main()
