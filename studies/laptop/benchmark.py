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
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from copy import deepcopy
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, TypeVar

import torch
from llama_cpp import Llama
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.servers import Server, llama_server, running
from cactus_decoding import Pair, load_pair, stream, zoo
from cactus_decoding.zoo.word_problems import word_problems
from scripts.bundled_gguf import write_bundled, write_gguf
from scripts.pages import Cell, columns
from studies.study import study

RESULTS = Path(__file__).with_name("results") / "benchmark.json.gz"
MAX_NEW_TOKENS, CONTEXT, KIND = 80, 512, "q8_0"
RULES = ("lossless", "cactus:delta=1", "clamped:width=1")
EXTRA_LAYERS = (0, 66)
PARTS = ("draft", "target", "verify")
Answer = dict[str, float]
"""Tokens, steps, proposals, accepted ones and seconds of one answer, of the clock and the processor; ours by parts."""
Key = TypeVar("Key")


class Way(NamedTuple):
    """How problems are answered: ``(prompt, temperature, seed) -> Answer``, in which time need not be; and a clock."""

    counts: Callable[[str, float, int], Answer]
    processor: Callable[[], float] = time.process_time


def deepened(folder: Path, layers: int) -> Path:
    """Write the bundled target with more layers, whose outputs are multiplied by zero."""
    source, path = zoo.path("target"), folder / f"target+{layers}.gguf"
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    for _ in range(layers):
        layer = deepcopy(model.model.layers[0])
        torch.nn.init.zeros_(layer.self_attn.o_proj.weight)
        torch.nn.init.zeros_(layer.mlp.down_proj.weight)
        model.model.layers.append(layer)
    model.config.num_hidden_layers += layers
    write_gguf(model, AutoTokenizer.from_pretrained(source), path, KIND)
    return path


def served(server: Server) -> Way:
    """Return how llama.cpp's server answers, which says itself how long that took."""

    def counts(prompt: str, temperature: float, seed: int) -> Answer:
        timings = server.post("/completion", {
            "prompt": prompt, "temperature": temperature, "samplers": ["temperature"], "seed": seed,
            "n_predict": MAX_NEW_TOKENS, "cache_prompt": False,
        })["timings"]  # fmt: skip
        tokens, accepted = timings["predicted_n"], timings.get("draft_n_accepted", 0)
        found = {"tokens": tokens, "steps": tokens - accepted, "accepted": accepted}
        seconds = (timings["prompt_ms"] + timings["predicted_ms"]) / 1000
        return found | {"drafted": timings.get("draft_n", 0), "seconds": seconds}

    return Way(counts, server.processor_seconds)


def python_binding(target: Path, proposals: int) -> Way:
    """Return how llama-cpp-python answers by itself, with its prompt look-up or without."""
    lookup = LlamaPromptLookupDecoding(num_pred_tokens=proposals) if proposals else None
    shape = {"n_ctx": CONTEXT, "n_threads": 1, "n_threads_batch": 1, "flash_attn": True, "verbose": False}
    llama = Llama(str(target), draft_model=lookup, **shape)
    passes, plain_eval = Counter[str](), llama.eval

    def counted(tokens: Any) -> None:
        passes["all"] += 1
        plain_eval(tokens)

    llama.eval = counted

    def counts(prompt: str, temperature: float, seed: int) -> Answer:
        llama.reset()
        llama.set_seed(seed)
        passes.clear()
        prompt_ids, tokens = llama.tokenize(prompt.encode(), special=True), 0
        for token in llama.generate(prompt_ids, temp=temperature, top_k=0, top_p=1.0, min_p=0.0):
            tokens += 1
            if token == llama.token_eos() or tokens == MAX_NEW_TOKENS:
                break
        return {"tokens": tokens, "steps": passes["all"], "drafted": 0, "accepted": tokens - passes["all"]}

    return Way(counts)


def ours(pair: Pair, rule: str, proposals: int) -> Way:
    """Return how our loop answers."""
    settings: dict[str, Any] = {"num_speculative_tokens": proposals, "max_new_tokens": MAX_NEW_TOKENS, "rule": rule}

    def counts(prompt: str, temperature: float, seed: int) -> Answer:
        response = stream(pair, prompt, temperature=temperature, seed=seed, **settings)
        outcomes, metrics = list(response), response.metrics
        parts = {name: sum(getattr(outcome, f"{name}_seconds") for outcome in outcomes) for name in PARTS}
        found = {name: getattr(metrics, name) for name in ("steps", "drafted", "accepted")}
        return found | {"tokens": metrics.generated} | parts

    return Way(counts)


def in_turn(ways: Mapping[Key, Way], problems: int, temperature: float) -> dict[Key, list[Answer]]:
    """Return the answers of each way to some problems, one after another; an answer before them warms up."""
    answers: dict[Key, list[Answer]] = {key: [] for key in ways}
    for number, problem in enumerate(islice(word_problems("validation"), problems + 1)):
        for key, way in ways.items():
            began, used = time.perf_counter(), way.processor()
            answer = way.counts(problem.prompt, temperature, number)
            taken = {"seconds": time.perf_counter() - began, "processor": way.processor() - used}
            if number:
                answers[key].append(taken | answer)
    return answers


def one_target(given: Namespace, folder: Path, layers: int) -> Iterator[dict[str, Any]]:
    """Yield what each way did on one target."""
    target = deepened(folder, layers) if layers else write_bundled("target", folder, KIND)
    draft, most, ways = write_bundled("worded", folder, KIND), given.proposals[-1], dict[tuple[str, int], Way]()
    pair = load_pair(f"{target}:context_size={CONTEXT}", f"{draft}:context_size={CONTEXT}", kept_prompts=0)
    with ExitStack() as servers:
        for count in (0, *given.proposals):
            drafting = ["--spec-draft-n-max", str(count)] if count else []
            command = llama_server(given.llama_server, target, draft if count else None, 1, CONTEXT, *drafting)
            ways["llama.cpp's server", count] = served(servers.enter_context(running(command)))
        ways["llama-cpp-python", 0] = python_binding(target, 0)
        ways["llama-cpp-python, look-up", most] = python_binding(target, most)
        ways["ours, lossless", 0] = ours(pair, "lossless", 0)
        ways |= {(f"ours, {rule}", count): ours(pair, rule, count) for rule in RULES for count in given.proposals}
        # at temperature 0 our rules are all the same
        greedy = {key: way for key, way in ways.items() if not key[0].startswith("ours") or "lossless" in key[0]}
        for temperature, some in ((1.0, ways), (0.0, greedy)):
            for (name, count), answers in in_turn(some, given.problems, temperature).items():
                yield summary(name, count, temperature, answers) | {"extra_layers": layers}


def measure(given: Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        rows = [row for layers in EXTRA_LAYERS for row in one_target(given, Path(folder), layers)]
    return {"rows": rows, "max_new_tokens": MAX_NEW_TOKENS}


def summary(name: str, proposals: int, temperature: float, answers: list[Answer]) -> dict[str, Any]:
    """Return the answers of one way as medians and shares."""
    total = {key: sum(answer[key] for answer in answers) for key in answers[0]}
    return {
        "way": name, "proposals": proposals, "temperature": temperature,
        "accepted_per_step": total["accepted"] / total["steps"],
        "tokens_per_second": median(answer["tokens"] / answer["seconds"] for answer in answers),
        "processor_ms_per_token": 1000 * total["processor"] / total["tokens"],
        **{f"{part}_share": total[part] / total["seconds"] for part in PARTS if part in total},
        "answers": answers,
    }  # fmt: skip


def shown(result: Any) -> dict[str, str]:
    """Return a line for each way, and for each temperature and target its tokens per second."""
    rows: Sequence[dict[str, Any]] = result["rows"]
    temperatures, layers = (list(dict.fromkeys(row[name] for row in rows)) for name in ("temperature", "extra_layers"))
    found = {tuple(row[name] for name in ("way", "proposals", "temperature", "extra_layers")): row for row in rows}

    def cell(form: str, *where: float) -> Cell:
        return lambda way: form.format_map(found[*way, *where]) if (*way, *where) in found else ""

    heads: dict[str, Cell] = {"way": "{0}", "proposals": "{1}"}
    for at in temperatures:
        accepted = cell("{accepted_per_step:.2f}", at, layers[0])
        heads[f"accepted per step, T = {at:g}"] = lambda way, accepted=accepted: accepted(way) if way[1] else ""
    for extra in layers:
        target = f"+ {extra} layers" if extra else "tokens/s"
        heads |= {f"{target}, T = {at:g}": cell("{tokens_per_second:,.0f}", at, extra) for at in temperatures}
    return {"side by side": columns(dict.fromkeys((row["way"], row["proposals"]) for row in rows), heads)}


if __name__ == "__main__":
    study(
        __doc__, RESULTS, "studies/tables/laptop.md", measure, shown, needed=["llama_server"],
        llama_server=(None, "llama.cpp's own server, of the same source", {"type": Path}),
        problems=60, proposals=[3, 6],
    )  # fmt: skip
