"""Tokens per second on the bundled pair, one request at a time, against every way there is to do the same."""

from __future__ import annotations

import argparse
import json
import sys
from itertools import islice
from pathlib import Path

from contenders import HERE, Contender, race, summary

from cactus_decoding import zoo
from cactus_decoding.core.files.provenance import provenance
from cactus_decoding.zoo.word_problems import word_problems

BASELINES = ("generate", "assisted", "ensemble", "vllm", "vllm-speculative")
OURS = (
    "ours|lossless",
    "ours|cactus:delta=0.5",
    "ours|ensemble:weight=0.5",
    "ours|lossless|adaptive:max_draft_tokens=16",
)


def main() -> None:
    """Race, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", type=int, default=30, help="held-out word problems, each answered by everyone")
    parser.add_argument("--proposals", type=int, nargs="+", default=[6])
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--contenders", nargs="+", default=["generate", "assisted", "ensemble", *OURS])
    parser.add_argument("--before", type=Path, metavar="CHECKOUT", help="where contenders named before|... come from")
    parser.add_argument("--vllm", metavar="PYTHON", help="an interpreter that has vllm; without it, vllm stays out")
    parser.add_argument("--output", type=Path, default=HERE / "results" / "end_to_end.json")
    arguments = parser.parse_args()
    texts = [problem.prompt for problem in islice(word_problems("test", seed=1), arguments.problems)]
    given = {key: str(value) if isinstance(value, Path) else value for key, value in vars(arguments).items()}
    given["vllm"] = bool(arguments.vllm)
    given.pop("output")
    results = []
    for proposals in arguments.proposals:
        options = {
            "target": zoo.path("target"),
            "draft": zoo.path("draft"),
            "proposals": proposals,
            "threads": arguments.threads,
        }
        contenders = [
            Contender(
                name,
                python=sys.executable,
                script="end_to_end_worker.py",
                options=options,
                checkout=arguments.before.resolve() if name.startswith("before|") else None,
            )
            for name in arguments.contenders
        ]
        if arguments.vllm:
            contenders += [
                Contender(name, python=arguments.vllm, script="end_to_end_vllm.py", options=options)
                for name in BASELINES[3:]
            ]
        for temperature in arguments.temperatures:
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
        # after each: it takes long
        arguments.output.write_text(json.dumps({"results": results, "provenance": provenance(given)}, indent=1) + "\n")
    print(f"written to {arguments.output}")


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
    main()
