"""Four requests at once beside the same ones after another: what reading them together brings.

    python at_once.py TARGET.gguf --draft DRAFT.gguf

A server with a place for each has read their prompts before; every round asks it for all at once and one after another,
and a server with one place (``--parallel 1``) too. Processor time is that of the serving process. What a pass costs by
what it reads is measured beside it.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from pairing import benchmark
from servers import Answer, Server, cactus, running

from cactus_decoding.engines.llama_cpp.models.context import Context, Portion
from cactus_decoding.engines.llama_cpp.models.settings import LlamaCppSettings
from cactus_decoding.engines.llama_cpp.models.weights import GgufModel

ASKED = (
    "Write a long story about a ship.", "Explain in detail how bread is made.", "Describe the city of Rome.",
    "Write an essay about the history of trains.",
)  # fmt: skip
SHAPES = ((1,), (1, 1, 1, 1), (4,), (7,), (16,), (4, 4, 4), (4, 4, 4, 4), (4, 2, 3, 1))
"""Tokens of each text that a pass reads."""


def passes(path: Path, threads: int, filled: int = 300, repeats: int = 5) -> dict[str, float]:
    """Return the processor seconds of passes over some tokens of each of some texts."""
    context = Context.make(GgufModel.load("target", path), LlamaCppSettings(1024, threads=threads), len(ASKED))
    ids, taken = np.arange(100, 100 + filled, dtype=np.int32), dict[str, list[float]]()
    for sequence in range(len(ASKED)):
        for start in range(0, filled, 100):
            context.read([Portion(sequence, ids[start : start + 100], start, 1)])
    for _ in range(repeats):
        for shape in SHAPES:
            began = time.process_time()
            context.read([Portion(place, ids[:count], filled, count) for place, count in enumerate(shape)])
            taken.setdefault("+".join(map(str, shape)), []).append(time.process_time() - began)
            for sequence in range(len(shape)):
                context.forget_from(sequence, filled)
    return {shape: round(median(seconds), 4) for shape, seconds in taken.items()}


def ask_all(server: Server, tokens: int, at_once: bool) -> dict[str, float]:
    """Return how many tokens came, and in what time."""

    def ask(question: str) -> Answer:
        body = {"messages": [{"role": "user", "content": question}], "max_tokens": tokens, "temperature": 0}
        return server.chat(body)

    before, began = server.processor_seconds(), time.perf_counter()
    with ThreadPoolExecutor(len(ASKED) if at_once else 1) as pool:
        count = sum(answer.tokens for answer in pool.map(ask, ASKED))
    taken = {"seconds": time.perf_counter() - began, "processor": server.processor_seconds() - before}
    return {"tokens": count} | {clock: round(value, 3) for clock, value in taken.items()}


def measure(given: Namespace) -> Iterator[dict[str, Any]]:
    result: dict[str, Any] = {"passes": passes(given.target, given.threads), "rounds": []}
    print(result["passes"], flush=True)
    for proposals in given.proposals:
        options = ["--threads", str(given.threads), "--num-speculative-tokens", proposals, "--kept-prompts", "8"]
        command = cactus(f"{given.target}:context_size=1024", str(given.draft), *options)
        with running([*command, "--parallel", str(len(ASKED))]) as server, running(command) as single:
            ways = {"at once": (server, True), "in turn": (server, False), "one place": (single, True)}
            for each in (server, single):
                ask_all(each, 8, at_once=True)
            for _ in range(given.rounds):
                found = {name: ask_all(by, given.tokens, at_once) for name, (by, at_once) in ways.items()}
                rates = {name: each["tokens"] / each["processor"] for name, each in found.items()}
                ratios = {
                    "ratio": round(rates["at once"] / rates["in turn"], 3),
                    "ratio_to_one_place": round(rates["at once"] / rates["one place"], 3),
                }
                result["rounds"].append({"proposals": proposals} | ratios | found)
                print(result["rounds"][-1], flush=True)
        yield result


if __name__ == "__main__":
    benchmark(
        __doc__, "at_once", measure, target=Path, draft=Path("suffix"), tokens=48, rounds=3, threads=1,
        proposals=(["0", "3"], "per step; auto is allowed"),
    )  # fmt: skip
