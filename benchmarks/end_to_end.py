"""Tokens per second on the bundled pair, one request at a time, against every way there is to do the same."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from contenders import Contender, race, summary
from pairing import benchmark

from cactus_decoding import zoo
from cactus_decoding.zoo.word_problems import word_problems

BASELINES = ("generate", "assisted", "ensemble", "vllm", "vllm-speculative")
OURS = (
    "ours|lossless",
    "ours|cactus:delta=0.5",
    "ours|ensemble:weight=0.5",
    "ours|lossless|auto:learns=always",
)


def contenders_of(given: Namespace, proposals: int) -> list[Contender]:
    options = {"target": zoo.path("target"), "draft": zoo.path("draft"), "proposals": proposals}
    options["threads"] = given.threads
    asked = [(name, sys.executable, "end_to_end_worker.py") for name in given.contenders]
    asked += [(name, given.vllm, "end_to_end_vllm.py") for name in BASELINES[3:] if given.vllm]
    return [
        Contender(
            name, python=python, script=script, options=options,
            checkout=given.before.resolve() if name.startswith("before|") else None,
        )
        for name, python, script in asked
    ]  # fmt: skip


def measure(given: Namespace) -> Iterator[dict[str, Any]]:
    texts = [problem.prompt for problem in islice(word_problems("test", seed=1), given.problems)]
    results = []
    for proposals in given.proposals:
        contenders = contenders_of(given, proposals)
        for temperature in given.temperatures:
            requests = [
                {"text": text, "temperature": temperature, "max_new_tokens": 200, "seed": seed}
                for seed, text in enumerate(texts)
            ]
            answers = race(contenders, requests)
            table = summary(answers, [*BASELINES, *(name for name in answers if name.startswith("before|"))])
            results.append({"proposals": proposals, "temperature": temperature, "contenders": table})
            _show(results[-1])
            if temperature == 0:
                results[-1]["same_tokens_as_generate"] = _agreement(answers)
                print("answers equal to generate's:", results[-1]["same_tokens_as_generate"])
        for contender in contenders:
            contender.close()
        yield {"results": results}  # after each: it takes long


def _agreement(answers) -> dict[str, int]:
    """Return how many of each contender's greedy answers are those of `generate`, token for token."""
    if "generate" not in answers:
        return {}
    expected = [reply["tokens"] for reply in answers["generate"]]
    return {
        name: sum(reply["tokens"] == tokens for reply, tokens in zip(replies, expected, strict=True))
        for name, replies in answers.items()
    }


def _show(result) -> None:
    print(
        f"\n{result['proposals']} proposals, temperature {result['temperature']}: tokens a second, ratios, peak memory"
    )
    for name, row in result["contenders"].items():
        ratios = "  ".join(
            f"{baseline} {ratio:.2f} ({row['ratio_cpu'][baseline]:.2f})" for baseline, ratio in row["ratio"].items()
        )
        print(f"{name:32} {row['tokens_per_second']:7.1f}  {ratios}  {row['peak_mib']} MiB", flush=True)


if __name__ == "__main__":
    path = {"type": Path}
    benchmark(
        __doc__, "end_to_end", measure,
        problems=(30, "held-out word problems, each answered by everyone"),
        proposals=[6],
        temperatures=[0.0, 1.0],
        threads=1,
        contenders=["generate", "assisted", "ensemble", *OURS],
        before=(None, "where contenders named before|... come from", path, {"metavar": "CHECKOUT"}),
        vllm=(None, "an interpreter that has vllm; without it, vllm stays out", {"metavar": "PYTHON"}),
    )  # fmt: skip
