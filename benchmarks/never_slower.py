"""Tokens per second of ways to propose, beside no proposals: a GGUF pair answers texts of five kinds, each way in turn.

    python benchmarks/never_slower.py target.gguf --draft draft.gguf --data FOLDER --output results.json

FOLDER holds gsm8k_test.jsonl, human_eval.jsonl.gz and spec_bench.jsonl, as published. An answer is timed from its first
token on, so that reading the target's prompt is not in it; what a draft reads in the middle of an answer is. Answers
that the output file has are not made again.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import statistics
import time
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch

from cactus_decoding.files.provenance import provenance
from cactus_decoding.files.writing import write_atomically

EDITS = (
    "Rename every variable called i to index.",
    "Add a docstring of one line where one is missing, and change nothing else.",
    "Add type hints to all arguments, and change nothing else.",
    "Make it raise ValueError for an empty argument, and change nothing else.",
)
WAYS = ("none", "ngram@auto", "draft@auto", "ngram@6", "draft@1", "draft@3", "draft@7", "llama", "llama-lookup")


def prompts(data: Path, count: int) -> dict[str, list[str]]:
    """Return what is asked, by kind of text."""
    sums = [json.loads(line)["question"] for line in (data / "gsm8k_test.jsonl").read_text().splitlines()]
    with gzip.open(data / "human_eval.jsonl.gz", "rt") as file:
        programs = [json.loads(line) for line in file]
    bench = [json.loads(line) for line in (data / "spec_bench.jsonl").read_text().splitlines()]
    short = [each["turns"][0] for each in bench if each["category"] == "summarization" and len(each["turns"][0]) < 1900]
    chat = [each["turns"][0] for each in bench if each["category"] in ("writing", "roleplay", "humanities", "stem")]
    edits = [
        f"Return this code with one change. {EDITS[i % len(EDITS)]}\n\n```python\n"
        + each["prompt"]
        + each["canonical_solution"]
        for i, each in enumerate(programs[20 : 20 + count])
    ]
    kinds = {
        "math": sums,
        "code": [f"Complete this function.\n\n```python\n{each['prompt']}```" for each in programs],
        "edit": [f"{text}```" for text in edits],
        "summary": short,
        "chat": chat,
    }
    return {kind: texts[:count] for kind, texts in kinds.items()}


def timed(tokens: Iterator[int], count: int) -> dict[str, float]:
    """Return how many tokens came after the first, and what they took."""
    next(tokens)
    wall, processor, written = time.perf_counter(), time.process_time(), 0
    for _ in tokens:
        written += 1
        if written == count:
            break
    return {
        "tokens": written,
        "seconds": time.perf_counter() - wall,
        "processor_seconds": time.process_time() - processor,
    }


class Contenders:
    """What answers in each way: loaded when it is asked for first, and kept for all ways with the same draft."""

    def __init__(self, target: Path, draft: Path | None, threads: int, temperature: float) -> None:
        self._target, self._draft, self._threads, self._temperature = target, draft, threads, temperature
        self._made: dict[str, Any] = {}

    def answer(self, way: str, text: str, count: int) -> dict[str, float]:
        """Answer in chat, and return tokens and seconds after the first token."""
        source, _, length = way.partition("@")
        made = self._made.get(source) or self._made.setdefault(source, self._load(source))
        ids = self._prompt(made, text)
        settings: dict[str, Any] = {}
        if not source.startswith("llama"):
            settings["num_speculative_tokens"] = length if length == "auto" else int(length or 0)
        tokens = made.generate(ids, temp=self._temperature, top_k=0, top_p=1.0, min_p=0.0, **settings)
        return timed(takewhile(lambda token: token != made.token_eos(), tokens), count)

    def _load(self, source: str) -> Any:
        from llama_cpp import Llama
        from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

        from cactus_decoding.integrations.llama_cpp.llama import CactusLlama

        options = {"n_ctx": 2048, "n_threads": self._threads, "n_threads_batch": self._threads, "verbose": False}
        options["seed"] = 0
        if source == "llama":
            return Llama(str(self._target), **options)
        if source == "llama-lookup":
            lookup = LlamaPromptLookupDecoding(num_pred_tokens=6)
            return Llama(str(self._target), draft_model=lookup, logits_all=True, **options)
        draft = self._draft if source == "draft" else "ngram" if source == "none" else source
        made = CactusLlama(str(self._target), draft=draft, **options)
        made.prepare()
        return made

    @staticmethod
    def _prompt(made: Any, text: str) -> list[int]:
        chat = f"<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n{text}<|im_end|>\n"
        return made.tokenize((chat + "<|im_start|>assistant\n").encode(), add_bos=False, special=True)


def ratios(runs: dict[str, dict[str, float]], way: str, clock: str) -> list[float]:
    """Return the speed of a way over that of no proposals, for each prompt that both have answered."""
    found = []
    for key, run in runs.items():
        kind, i, each = key.split("/")
        plain = runs.get(f"{kind}/{i}/none")
        if each == way and plain and min(run["tokens"], plain["tokens"]) > 0:
            found.append(run["tokens"] / run[clock] / (plain["tokens"] / plain[clock]))
    return found


def interval(values: list[float], draws: int = 2000) -> str:
    """Return the geometric mean with a 95 % bootstrap interval over prompts; fewer than five are too few to tell."""
    logs = torch.tensor([math.log(each) for each in values], dtype=torch.float64)
    mean = f"{math.exp(logs.mean()):.2f}"
    if len(values) < 5:
        return f"{mean} (too few to tell)"
    picks = torch.randint(len(values), (draws, len(values)), generator=torch.Generator().manual_seed(0))
    low, high = logs[picks].mean(1).quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).exp().tolist()
    return f"{mean} ({low:.2f} to {high:.2f})"


def table(runs: dict[str, dict[str, float]], clock: str) -> str:
    """Return the ratios by kind and way, in Markdown."""
    kinds = list(dict.fromkeys(key.split("/")[0] for key in runs))
    ways = [way for way in dict.fromkeys(key.split("/")[2] for key in runs) if way != "none"]
    lines = ["| kind | none, tokens/s | " + " | ".join(ways) + " |", "|---|" + "---:|" * (len(ways) + 1)]
    for kind in kinds:
        here = {key: run for key, run in runs.items() if key.startswith(f"{kind}/")}
        plain = [run["tokens"] / run[clock] for key, run in here.items() if key.endswith("/none")]
        cells = [interval(found) if (found := ratios(here, way, clock)) else "–" for way in ways]
        lines.append(f"| {kind} ({len(plain)}) | {statistics.median(plain):.1f} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Answer what is missing, write after each prompt, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("--draft", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--prompts", type=int, default=8, help="of each kind")
    parser.add_argument("--tokens", type=int, default=64, help="of each answer, after its first")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--ways", nargs="+", default=list(WAYS), help="none, llama, llama-lookup, or DRAFT@LENGTH")
    parser.add_argument("--clock", choices=["seconds", "processor_seconds"], default="seconds")
    parser.add_argument("--output", type=Path, required=True)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    settings = {"threads": given.threads, "tokens": given.tokens, "temperature": given.temperature}
    stored = json.loads(given.output.read_text()) if given.output.exists() else {"settings": settings, "runs": {}}
    if stored["settings"] != settings:
        parser.error(f"{given.output} is of {stored['settings']}, but this run is of {settings}")
    runs: dict[str, dict[str, float]] = stored["runs"]
    contenders = Contenders(given.target, given.draft, given.threads, given.temperature)
    asked = prompts(given.data, given.prompts)
    for i in range(given.prompts):
        for kind, texts in asked.items():
            for way in given.ways:
                key = f"{kind}/{i}/{way}"
                if i < len(texts) and key not in runs:
                    runs[key] = contenders.answer(way, texts[i], given.tokens)
                    print(f"{key}: {runs[key]['tokens']} tokens in {runs[key]['seconds']:.1f} s", flush=True)
            about = {"target": given.target.name, "draft": given.draft and given.draft.name, "ways": given.ways}
            content = {"settings": settings, "runs": runs, "provenance": provenance(about | settings)}
            write_atomically(given.output, json.dumps(content, indent=1) + "\n")
    print(table(runs, given.clock))


if __name__ == "__main__":
    main()
