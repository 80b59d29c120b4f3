"""Our loop beside llama.cpp's own speculation, on the same files and threads: a table in docs/studies/tables/laptop.md.

    python -m studies.laptop.benchmark --llama-server PATH      minutes on an idle machine
    python -m studies.laptop.benchmark --only-render            the table from the result file

The target is the bundled one twice: as it is, and deepened by layers that add nothing, which cost what layers cost and
leave every row as it was. Problem after problem each way answers in turn, so what else runs on the machine disturbs all
of them alike. llama.cpp's server says itself how long it took; ours are timed from outside, prompts included in both.
Processor time is that of the whole process, which other work disturbs less: Linux only. The page says how to build
the server.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import torch
from llama_cpp import Llama
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding
from transformers import AutoModelForCausalLM, AutoTokenizer

from cactus_decoding import Pair, load_pair, stream, zoo
from cactus_decoding.core.files.provenance import provenance
from cactus_decoding.zoo.word_problems import word_problems
from scripts.bundled_gguf import write_bundled, write_gguf
from scripts.pages import insert, table
from studies.stored import read_packed, write_packed
from studies.tables import table_parser

MAX_NEW_TOKENS = 80
CONTEXT = 512
RULES = ("lossless", "cactus:delta=1", "clamped:width=1")
Answer = dict[str, float]
"""Tokens, steps, proposals, accepted ones and seconds of one answer, of the clock and the processor; ours by parts."""
Way = Callable[[str, float, int], Answer]
"""``(prompt, temperature, seed) -> Answer``"""


def deepened(folder: Path, kind: str, layers: int) -> Path:
    """Write the bundled target with more layers, whose outputs are multiplied by zero."""
    source, path = zoo.path("target"), folder / f"target+{layers}-{kind}.gguf"
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    for _ in range(layers):
        layer = deepcopy(model.model.layers[0])
        torch.nn.init.zeros_(layer.self_attn.o_proj.weight)
        torch.nn.init.zeros_(layer.mlp.down_proj.weight)
        model.model.layers.append(layer)
    model.config.num_hidden_layers += layers
    write_gguf(model, AutoTokenizer.from_pretrained(source), path, kind)
    return path


@contextmanager
def llama_server(binary: Path, target: Path, draft: Path | None, proposals: int, threads: int) -> Iterator[Way]:
    """Run llama.cpp's server, and yield how it answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(binary), "-m", str(target), "--port", str(port), "-c", str(CONTEXT), "-np", "1", "--no-webui"]
    command += ["-t", str(threads), "-tb", str(threads)]
    if draft is not None:
        command += ["--spec-type", "draft-simple", "-md", str(draft), "--spec-draft-n-max", str(proposals)]
        command += ["-td", str(threads), "-tbd", str(threads)]
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            while process.poll() is None and not _answers(port):
                time.sleep(0.2)
            if process.poll() is not None:
                log.seek(0)
                raise SystemExit(f"{binary} ended: {log.read()[-2000:]}")

            def answer(prompt: str, temperature: float, seed: int) -> Answer:
                before = _processor_seconds(process.pid)
                found = _ask(port, prompt, temperature, seed)
                return found | {"processor": _processor_seconds(process.pid) - before}

            yield answer
        finally:
            process.terminate()
            process.wait()


def _answers(port: int) -> bool:
    try:
        return urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).status == 200
    except OSError:
        return False


def _processor_seconds(pid: int) -> float:
    """Return what a process has used so far, to a tick of usually 10 ms."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _ask(port: int, prompt: str, temperature: float, seed: int) -> Answer:
    body = {
        "prompt": prompt,
        "temperature": temperature,
        "samplers": ["temperature"],
        "seed": seed,
        "n_predict": MAX_NEW_TOKENS,
        "cache_prompt": False,
    }
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/completion", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    timings = json.loads(urllib.request.urlopen(request, timeout=300).read())["timings"]
    tokens, accepted = timings["predicted_n"], timings.get("draft_n_accepted", 0)
    seconds = (timings["prompt_ms"] + timings["predicted_ms"]) / 1000
    drafted = timings.get("draft_n", 0)
    return {"tokens": tokens, "steps": tokens - accepted, "drafted": drafted, "accepted": accepted, "seconds": seconds}


def python_binding(target: Path, proposals: int, threads: int) -> Way:
    """Return how llama-cpp-python answers by itself, with its prompt look-up or without."""
    lookup = LlamaPromptLookupDecoding(num_pred_tokens=proposals) if proposals else None
    shape = {"n_ctx": CONTEXT, "n_threads": threads, "n_threads_batch": threads, "flash_attn": True, "verbose": False}
    llama = Llama(str(target), draft_model=lookup, **shape)
    passes = [0]
    plain_eval = llama.eval

    def counted(tokens: Any) -> None:
        passes[0] += 1
        plain_eval(tokens)

    llama.eval = counted

    def answer(prompt: str, temperature: float, seed: int) -> Answer:
        llama.reset()
        llama.set_seed(seed)
        start, used, passes[0], tokens = time.perf_counter(), time.process_time(), 0, 0
        prompt_ids = llama.tokenize(prompt.encode(), special=True)
        for token in llama.generate(prompt_ids, temp=temperature, top_k=0, top_p=1.0, min_p=0.0):
            tokens += 1
            if token == llama.token_eos() or tokens == MAX_NEW_TOKENS:
                break
        seconds, used = time.perf_counter() - start, time.process_time() - used
        counts = {"tokens": tokens, "steps": passes[0], "drafted": 0, "accepted": tokens - passes[0]}
        return counts | {"seconds": seconds, "processor": used}

    return answer


def ours(pair: Pair, rule: str, proposals: int) -> Way:
    """Return how our loop answers."""

    def answer(prompt: str, temperature: float, seed: int) -> Answer:
        settings = {"num_speculative_tokens": proposals, "max_new_tokens": MAX_NEW_TOKENS}
        start, used, parts = time.perf_counter(), time.process_time(), dict.fromkeys(("draft", "target", "verify"), 0.0)
        response = stream(pair, prompt, rule=rule, temperature=temperature, seed=seed, **settings)
        for outcome in response:
            for name in parts:
                parts[name] += getattr(outcome, f"{name}_seconds")
        seconds, used, counts = time.perf_counter() - start, time.process_time() - used, response.metrics
        found = {name: getattr(counts, name) for name in ("steps", "drafted", "accepted")}
        return found | {"tokens": counts.generated, "seconds": seconds, "processor": used} | parts

    return answer


def measure(given: argparse.Namespace, folder: Path, layers: int) -> list[dict[str, Any]]:
    """Return what each way did on one target."""
    target = deepened(folder, given.type, layers) if layers else write_bundled("target", folder, given.type)
    draft, ways = write_bundled(given.draft, folder, given.type), dict[tuple[str, int], Way]()
    torch.set_num_threads(given.threads)
    pair = load_pair(f"{target}:context_size={CONTEXT}", f"{draft}:context_size={CONTEXT}", kept_prompts=0)
    with ExitStack() as servers:
        for proposals in (0, *given.proposals):
            server = llama_server(given.llama_server, target, draft if proposals else None, proposals, given.threads)
            ways["llama.cpp's server", proposals] = servers.enter_context(server)
        ways["llama-cpp-python", 0] = python_binding(target, 0, given.threads)
        ways["llama-cpp-python, look-up", given.proposals[-1]] = python_binding(
            target, given.proposals[-1], given.threads
        )
        ways["ours, lossless", 0] = ours(pair, "lossless", 0)
        for rule in RULES:
            for proposals in given.proposals:
                ways[f"ours, {rule}", proposals] = ours(pair, rule, proposals)
        problems = list(islice(word_problems("validation"), given.problems + 1))
        answers: dict[tuple[str, int, float], list[Answer]] = {}
        for temperature in (1.0, 0.0):
            for number, problem in enumerate(problems):
                for (name, proposals), way in ways.items():
                    if temperature == 0 and name.startswith("ours") and "lossless" not in name:
                        continue  # which is then the same
                    answer = way(problem.prompt, temperature, number)
                    if number:  # the first warms up
                        answers.setdefault((name, proposals, temperature), []).append(answer)
    return [summary(*key, layers, found) for key, found in answers.items()]


def summary(name: str, proposals: int, temperature: float, layers: int, answers: list[Answer]) -> dict[str, Any]:
    """Return the answers of one way as medians and shares."""
    total = {key: sum(answer[key] for answer in answers) for key in answers[0]}
    return {
        "way": name,
        "proposals": proposals,
        "temperature": temperature,
        "extra_layers": layers,
        "accepted_per_step": total["accepted"] / total["steps"],
        "tokens_per_second": median(answer["tokens"] / answer["seconds"] for answer in answers),
        "processor_ms_per_token": 1000 * total["processor"] / total["tokens"],
        **{f"{part}_share": total[part] / total["seconds"] for part in ("draft", "target", "verify") if part in total},
        "answers": answers,
    }


def markdown(rows: list[dict[str, Any]]) -> str:
    """Return the table: a line for each way, and for each temperature and target its tokens per second."""
    temperatures, layers = (list(dict.fromkeys(row[name] for row in rows)) for name in ("temperature", "extra_layers"))
    found = {tuple(row[name] for name in ("way", "proposals", "temperature", "extra_layers")): row for row in rows}
    names = ["way", "proposals", *(f"accepted per step, T = {temperature:g}" for temperature in temperatures)]
    for extra in layers:
        target = f"+ {extra} layers" if extra else "tokens/s"
        names += [f"{target}, T = {temperature:g}" for temperature in temperatures]
    lines = []
    for way, proposals in dict.fromkeys((row["way"], row["proposals"]) for row in rows):
        accepted = [found.get((way, proposals, temperature, layers[0])) for temperature in temperatures]
        speeds = [found.get((way, proposals, temperature, extra)) for extra in layers for temperature in temperatures]
        cells = [way, str(proposals)]
        cells += [f"{row['accepted_per_step']:.2f}" if row and proposals else "" for row in accepted]
        cells += [f"{row['tokens_per_second']:,.0f}" if row else "" for row in speeds]
        lines.append(cells)
    return table(names, lines)


def main() -> None:
    """Measure, write the result file, and put the table on the page."""
    results = Path(__file__).with_name("results") / "benchmark.json"
    parser = table_parser(__doc__, results, "docs/studies/tables/laptop.md")
    parser.add_argument("--llama-server", type=Path, help="llama.cpp's own server, of the same source")
    parser.add_argument("--problems", type=int, default=60)
    parser.add_argument("--proposals", type=int, nargs="+", default=[3, 6])
    parser.add_argument("--draft", default="worded", help="a bundled draft")
    parser.add_argument("--type", default="q8_0", help="of both files")
    parser.add_argument("--extra-layers", type=int, nargs="+", default=[0, 66], help="of the target")
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    if not given.only_render:
        if given.llama_server is None or not given.llama_server.is_file():
            parser.error("--llama-server must be the path of llama.cpp's server")
        with tempfile.TemporaryDirectory() as folder:
            rows = [row for layers in given.extra_layers for row in measure(given, Path(folder), layers)]
        names = ("problems", "proposals", "draft", "type", "extra_layers", "threads")
        about = provenance({name: getattr(given, name) for name in names} | {"max_new_tokens": MAX_NEW_TOKENS})
        write_packed(given.results, json.dumps({"rows": rows, "provenance": about}) + "\n")
    rows = json.loads(read_packed(given.results))["rows"]
    given.page.write_text(insert(given.page.read_text(), "side by side", markdown(rows)))


if __name__ == "__main__":
    main()
