"""Tokens per second on the bundled pair, one request at a time, against every way there is to do the same."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from contenders import Process, race, summary
from pairing import benchmark

from cactus_decoding import zoo
from cactus_decoding.zoo.word_problems import word_problems

VLLM = ("vllm", "vllm-speculative")
THEIRS = ("generate", "assisted")
OURS = ("ours|lossless", "ours|cactus:delta=0.5", "ours|lossless|auto:learns=always")


def measure(given: Namespace) -> Iterator[dict[str, Any]]:
    texts = [problem.prompt for problem in islice(word_problems("test", seed=1), given.problems)]
    asked = [(name, sys.executable) for name in given.contenders]
    asked += [(name, given.vllm) for name in VLLM if given.vllm]
    results = []
    for proposals in given.proposals:
        pair = zoo.path("target"), zoo.path("draft"), proposals
        contenders = [Process(name, python, pair, given.threads) for name, python in asked]
        for temperature in given.temperatures:
            requests = [
                {"text": text, "temperature": temperature, "max_new_tokens": 200, "seed": seed}
                for seed, text in enumerate(texts)
            ]
            answers = race(contenders, requests, warm_ups=2)
            table = summary(answers, [*THEIRS, *VLLM])
            results.append({"proposals": proposals, "temperature": temperature, "contenders": table})
            if temperature == 0 and "generate" in answers:
                results[-1]["same_tokens_as_generate"] = agreement(answers)
            show(results[-1])
        for contender in contenders:
            contender.close()
        yield {"results": results}  # after each: it takes long


def agreement(answers: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, int]:
    """Return how many of each contender's greedy answers are those of `generate`, token for token."""
    return {
        name: sum(own["tokens"] == its["tokens"] for own, its in zip(replies, answers["generate"], strict=True))
        for name, replies in answers.items()
    }


def show(result: Mapping[str, Any]) -> None:
    where = f"{result['proposals']} proposals, temperature {result['temperature']}"
    print(f"\n{where}: tokens a second, ratios (in CPU time), peak memory")
    for name, row in result["contenders"].items():
        ratios = "  ".join(f"{base} {ratio:.2f} ({row['ratio_cpu'][base]:.2f})" for base, ratio in row["ratio"].items())
        print(f"{name:32} {row['tokens_per_second']:7.1f}  {ratios}  {row['peak_mib']} MiB", flush=True)
    if "same_tokens_as_generate" in result:
        print("answers equal to generate's:", result["same_tokens_as_generate"])


if __name__ == "__main__":
    benchmark(
        __doc__, "end_to_end", measure,
        problems=(30, "held-out word problems, each answered by everyone"),
        proposals=[6],
        temperatures=[0.0, 1.0],
        threads=1,
        contenders=[*THEIRS, *OURS],
        vllm=(None, "an interpreter that has vllm; without it, vllm stays out", {"metavar": "PYTHON"}),
    )  # fmt: skip
