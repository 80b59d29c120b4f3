"""How near GGUF files are to transformers, and greedy answers to llama.cpp's own: a table in docs/studies/tables.

    python -m studies.laptop.gguf_agreement                   minutes on one core
    python -m studies.laptop.gguf_agreement --only-render     the table from the result file

The files are the bundled target's, drafted for by the bundled worded draft's in the same type.
"""

from __future__ import annotations

import math
from argparse import Namespace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from cactus_decoding import Pair, zoo
from cactus_decoding.zoo.word_problems import WordProblem, word_problems
from scripts.pages import columns
from studies.greedy_agreement.run import MAX_NEW_TOKENS, drafted, gguf
from studies.study import study

RESULTS = Path(__file__).with_name("results") / "gguf_agreement.json"
KINDS = {"float32, `cache=float32`": ("float32", "float32")} | {
    kind: (kind, "float16") for kind in ("float32", "float16", "q8_0")
}
PROBABLE = math.log(0.01)


def difference(pairs: list[tuple[Tensor, Tensor]]) -> dict[str, float]:
    """Return how far texts' rows are from others: where a token has at least 1 %, on average, and by the likeliest."""
    ours, theirs = (torch.cat(each).double().log_softmax(-1) for each in zip(*pairs, strict=True))
    return {
        "largest": float((ours - theirs)[theirs > PROBABLE].abs().max()),
        "kl": float((theirs.exp() * (theirs - ours)).sum()) / len(ours),
        "argmax": int((ours.argmax(-1) != theirs.argmax(-1)).sum()),
        "positions": len(ours),
    }


@torch.inference_mode()
def rows_of(pair: Pair, problems: list[WordProblem]) -> dict[str, Any]:
    """Compare a target's rows with transformers', and with its own where tokens are read one after another."""
    exact = AutoModelForCausalLM.from_pretrained(zoo.path("target"), dtype=torch.float32).eval()
    beside, alone, target = [], [], pair.target
    for problem in problems:
        ids = pair.tokenizer(f"{problem.prompt} {problem.solution}").input_ids
        target.reset()
        rows = target.append(ids, rows=len(ids))
        beside.append((rows, exact(torch.tensor([ids])).logits[0]))
        target.reset()
        alone.append((torch.cat([target.append([token], rows=1) for token in ids]), rows))
    return {"transformers": difference(beside), "one_by_one": difference(alone)}


def one_kind(name: str, rows: int, answers: int) -> dict[str, Any]:
    """Return the row of a type of weights and cache; the answers are counted that are llama-cpp-python's own."""
    chosen = list(islice(word_problems("validation"), max(rows, answers)))
    with gguf(*KINDS[name], "worded") as (pair, alone):
        prompts, ours = [each.prompt for each in chosen[:answers]], drafted(pair, 6)
        equal = sum([*alone(prompt)] == [*ours(prompt)] for prompt in prompts)
        return {"name": name, **rows_of(pair, chosen[:rows]), "answers": answers, "equal": equal}


def measure(given: Namespace) -> dict[str, Any]:
    return {"rows": [one_kind(name, given.rows, given.answers) for name in KINDS], "max_new_tokens": MAX_NEW_TOKENS}


def shown(result: Any) -> dict[str, str]:
    return {"agreement": columns(result["rows"], {
        "file": "{name}",
        "largest difference": "{transformers[largest]:.1g}",
        "mean KL in nats": "{transformers[kl]:.0e}",
        "other likeliest token": "{transformers[argmax]} of {transformers[positions]:,}",
        "the same, read one by one":
            "{one_by_one[largest]:.1g}, {one_by_one[argmax]} of {one_by_one[positions]:,}",
        "greedy answers": "{equal} of {answers}",
    })}  # fmt: skip


if __name__ == "__main__":
    rows, answers = (20, "problems whose rows are compared"), (40, "problems that are answered")
    study(__doc__, RESULTS, "studies/tables/laptop.md", measure, shown, rows=rows, answers=answers)
