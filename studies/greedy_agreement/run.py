"""How many greedy answers are those of transformers' `generate`, token for token: the table in docs/hugging_face.md.

    python -m studies.greedy_agreement.run                   minutes on one core
    python -m studies.greedy_agreement.run --only-render     the table from the result file

Each problem is answered by the bundled target alone and then by every way to draft for it, one after another.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from cactus_decoding import Pair, generate, load_pair
from cactus_decoding.zoo.word_problems import word_problems
from studies.tables import render, table_parser

DTYPES = ("float32", "bfloat16")
MAX_NEW_TOKENS = 200
WAYS = {
    "assisted": "`generate` with `assistant_model`",
    "drafted": "this package",
}


def by_itself(pair: Pair, prompt: str, **options: Any) -> list[int]:
    """Return what the target's own `generate` answers greedily."""
    ids = pair.tokenizer(prompt, return_tensors="pt").input_ids
    model: Any = pair.target.model
    output = model.generate(ids, do_sample=False, max_new_tokens=MAX_NEW_TOKENS, **options)
    return output[0, ids.shape[1] :].tolist()  # type: ignore[no-any-return]


def ways(dtype: str) -> dict[str, Callable[[str], list[int]]]:
    """Return functions from a prompt to its greedy answer, by name."""
    pair = load_pair(draft="bundled:draft", dtype=getattr(torch, dtype))
    return {
        "alone": lambda prompt: by_itself(pair, prompt),
        "assisted": lambda prompt: by_itself(pair, prompt, assistant_model=pair.drafter.model),
        "drafted": lambda prompt: generate(pair, prompt, temperature=0, max_new_tokens=MAX_NEW_TOKENS).token_ids,
    }


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
    results = Path(__file__).with_name("results") / "greedy_agreement.json"
    parser = table_parser(__doc__, results, "docs/hugging_face.md")
    parser.add_argument("--problems", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    arguments = {"problems": given.problems, "seed": given.seed, "max_new_tokens": MAX_NEW_TOKENS}
    render(
        given,
        "agreement",
        markdown,
        lambda: [measure(dtype, given.problems, given.seed) for dtype in DTYPES],
        arguments,
    )


if __name__ == "__main__":
    main()
