"""How many greedy answers are those of transformers' `generate`, token for token: the table in docs/hugging_face.md.

    python scripts/greedy_agreement.py                   minutes on one core
    python scripts/greedy_agreement.py --only-render     the table from the result file

Each problem is answered by the bundled target alone and then by every way to draft for it, one after another.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from marked_page import insert

from cactus_decoding import Pair, generate, load_pair
from cactus_decoding.files.provenance import provenance
from cactus_decoding.zoo.word_problems import word_problems

ROOT = Path(__file__).resolve().parents[1]
DTYPES = ("float32", "bfloat16")
MAX_NEW_TOKENS = 200
WAYS = {
    "assisted": "`generate` with `assistant_model`",
    "transformers": '`forward="transformers"`',
    "auto": '`forward="auto"`',
}


def by_itself(pair: Pair, prompt: str, **options: Any) -> list[int]:
    """Return what the target's own `generate` answers greedily."""
    ids = pair.tokenizer(prompt, return_tensors="pt").input_ids
    model: Any = pair.target.model
    output = model.generate(ids, do_sample=False, max_new_tokens=MAX_NEW_TOKENS, **options)
    return output[0, ids.shape[1] :].tolist()  # type: ignore[no-any-return]


def ways(dtype: str) -> dict[str, Callable[[str], list[int]]]:
    """Return functions from a prompt to its greedy answer, by name."""
    pairs = {
        name: load_pair(draft="bundled:draft", dtype=getattr(torch, dtype), forward=name)
        for name in ("auto", "transformers")
    }

    def assisted(prompt: str) -> list[int]:
        return by_itself(pairs["auto"], prompt, assistant_model=pairs["auto"].drafter.model)

    def drafted(name: str) -> Callable[[str], list[int]]:
        return lambda prompt: generate(pairs[name], prompt, temperature=0, max_new_tokens=MAX_NEW_TOKENS).token_ids

    functions: dict[str, Callable[[str], list[int]]] = {"alone": lambda prompt: by_itself(pairs["auto"], prompt)}
    return functions | {"assisted": assisted} | {name: drafted(name) for name in pairs}


def measure(dtype: str, problems: int, seed: int) -> dict[str, Any]:
    """Return how many answers are those of the target alone, and the median of processor seconds, for each way."""
    functions = ways(dtype)
    equal = dict.fromkeys(functions, 0)
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for problem in islice(word_problems("validation", seed=seed), problems):
        answers = {}
        for name, answer in functions.items():
            began = time.process_time()
            answers[name] = answer(problem.prompt)
            seconds[name].append(time.process_time() - began)
            equal[name] += answers[name] == answers["alone"]
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    return {"dtype": dtype, "problems": problems, "equal": equal, "processor_seconds": medians}


def markdown(rows: list[dict[str, Any]]) -> str:
    """Return the table: answers that are those of the target alone, and the processor time of one answer."""
    lines = [f"| dtype | {' | '.join(WAYS.values())} |", "|---|" + "---:|" * len(WAYS)]
    for row in rows:
        alone = row["processor_seconds"]["alone"]
        cells = [
            f"{row['equal'][way]} of {row['problems']}, {row['processor_seconds'][way] / alone:.2f} of the time"
            for way in WAYS
        ]
        lines.append(f"| {row['dtype']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, write the result file, and put the table on the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only-render", action="store_true")
    parser.add_argument("--results", type=Path, default=ROOT / "docs/results/greedy_agreement.json")
    parser.add_argument("--page", type=Path, default=ROOT / "docs/hugging_face.md")
    given = parser.parse_args()
    if not given.only_render:
        arguments = {"problems": given.problems, "seed": given.seed, "max_new_tokens": MAX_NEW_TOKENS}
        rows = [measure(dtype, given.problems, given.seed) for dtype in DTYPES]
        given.results.write_text(json.dumps({"rows": rows, "provenance": provenance(arguments)}, indent=2) + "\n")
    rows = json.loads(given.results.read_text())["rows"]
    given.page.write_text(insert(given.page.read_text(), "agreement", markdown(rows)))


if __name__ == "__main__":
    main()
