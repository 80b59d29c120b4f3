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

import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from copy import deepcopy
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import torch
from llama_cpp import Llama
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.servers import Server, llama_server, running
from cactus_decoding import Pair, load_pair, stream, zoo
from cactus_decoding.zoo.word_problems import word_problems
from scripts.bundled_gguf import write_bundled, write_gguf
from scripts.pages import table
from studies.study import study

RESULTS = Path(__file__).with_name("results") / "benchmark.json.gz"
MAX_NEW_TOKENS = 80
CONTEXT = 512
RULES = ("lossless", "cactus:delta=1", "clamped:width=1")
Answer = dict[str, float]
"""Tokens, steps, proposals, accepted ones and seconds of one answer, of the clock and the processor; ours by parts."""
Way = Callable[[str, float, int], Answer]
"""``(prompt, temperature, seed) -> Answer``"""
Key = TypeVar("Key")


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


def served(server: Server) -> Way:
    """Return how llama.cpp's server answers."""

    def answer(prompt: str, temperature: float, seed: int) -> Answer:
        before = server.processor_seconds()
        timings = server.post("/completion", {
            "prompt": prompt, "temperature": temperature, "samplers": ["temperature"], "seed": seed,
            "n_predict": MAX_NEW_TOKENS, "cache_prompt": False,
        })["timings"]  # fmt: skip
        tokens, accepted = timings["predicted_n"], timings.get("draft_n_accepted", 0)
        seconds = (timings["prompt_ms"] + timings["predicted_ms"]) / 1000
        counts = {"tokens": tokens, "steps": tokens - accepted, "drafted": timings.get("draft_n", 0)}
        taken = {"seconds": seconds, "processor": server.processor_seconds() - before}
        return counts | {"accepted": accepted} | taken

    return answer


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


def in_turn(ways: Mapping[Key, Way], problems: int, temperature: float) -> dict[Key, list[Answer]]:
    """Return the answers of each way to some problems, one after another; an answer before them warms up."""
    answers: dict[Key, list[Answer]] = {key: [] for key in ways}
    for number, problem in enumerate(islice(word_problems("validation"), problems + 1)):
        for key, way in ways.items():
            answer = way(problem.prompt, temperature, number)
            if number:
                answers[key].append(answer)
    return answers


def one_target(given: Namespace, folder: Path, layers: int) -> list[dict[str, Any]]:
    """Return what each way did on one target."""
    target = deepened(folder, given.type, layers) if layers else write_bundled("target", folder, given.type)
    draft, ways = write_bundled(given.draft, folder, given.type), dict[tuple[str, int], Way]()
    torch.set_num_threads(given.threads)
    pair = load_pair(f"{target}:context_size={CONTEXT}", f"{draft}:context_size={CONTEXT}", kept_prompts=0)
    most = given.proposals[-1]
    with ExitStack() as servers:
        for proposals in (0, *given.proposals):
            drafting = (draft, ["--spec-draft-n-max", str(proposals)]) if proposals else (None, [])
            command = llama_server(given.llama_server, target, drafting[0], given.threads, CONTEXT, *drafting[1])
            ways["llama.cpp's server", proposals] = served(servers.enter_context(running(command)))
        ways["llama-cpp-python", 0] = python_binding(target, 0, given.threads)
        ways["llama-cpp-python, look-up", most] = python_binding(target, most, given.threads)
        ways["ours, lossless", 0] = ours(pair, "lossless", 0)
        ways |= {(f"ours, {rule}", count): ours(pair, rule, count) for rule in RULES for count in given.proposals}
        # at temperature 0 our rules are all the same
        greedy = {key: way for key, way in ways.items() if not key[0].startswith("ours") or "lossless" in key[0]}
        found = {temperature: in_turn(some, given.problems, temperature) for temperature, some in
                 ((1.0, ways), (0.0, greedy))}  # fmt: skip
    return [
        summary(name, proposals, temperature, answers) | {"extra_layers": layers}
        for temperature, by_way in found.items()
        for (name, proposals), answers in by_way.items()
    ]


def measure(given: Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        rows = [row for layers in given.extra_layers for row in one_target(given, Path(folder), layers)]
    return {"rows": rows, "max_new_tokens": MAX_NEW_TOKENS}


def summary(name: str, proposals: int, temperature: float, answers: list[Answer]) -> dict[str, Any]:
    """Return the answers of one way as medians and shares."""
    total = {key: sum(answer[key] for answer in answers) for key in answers[0]}
    return {
        "way": name,
        "proposals": proposals,
        "temperature": temperature,
        "accepted_per_step": total["accepted"] / total["steps"],
        "tokens_per_second": median(answer["tokens"] / answer["seconds"] for answer in answers),
        "processor_ms_per_token": 1000 * total["processor"] / total["tokens"],
        **{f"{part}_share": total[part] / total["seconds"] for part in ("draft", "target", "verify") if part in total},
        "answers": answers,
    }


def shown(result: Any) -> dict[str, str]:
    """Return a line for each way, and for each temperature and target its tokens per second."""
    rows: Sequence[dict[str, Any]] = result["rows"]
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
    return {"side by side": table(names, lines)}


if __name__ == "__main__":
    study(
        __doc__, RESULTS, "studies/tables/laptop.md", measure, shown, needed=["llama_server"],
        llama_server=(None, "llama.cpp's own server, of the same source", {"type": Path}),
        problems=60,
        proposals=[3, 6],
        draft=("worded", "a bundled draft"),
        type=("q8_0", "of both files"),
        extra_layers=([0, 66], "of the target"),
        threads=1,
    )  # fmt: skip
