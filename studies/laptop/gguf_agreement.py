"""How near GGUF files are to transformers, and greedy answers to llama.cpp's own: a table in docs/studies/tables.

    python -m studies.laptop.gguf_agreement                   minutes on one core
    python -m studies.laptop.gguf_agreement --only-render     the table from the result file

The files are the bundled target's, drafted for by the bundled worded draft's in the same type.
"""

from __future__ import annotations

import math
import tempfile
from argparse import Namespace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from llama_cpp import Llama
from torch import Tensor
from transformers import AutoModelForCausalLM

from cactus_decoding import Pair, generate, load_pair, zoo
from cactus_decoding.zoo.word_problems import WordProblem, word_problems
from scripts.bundled_gguf import write_bundled
from scripts.pages import columns
from studies.study import study

RESULTS = Path(__file__).with_name("results") / "gguf_agreement.json"
KINDS = {"float32, `cache=float32`": ("float32", "float32"), "float32": ("float32", "float16")} | {
    kind: (kind, "float16") for kind in ("float16", "q8_0")
}
PROBABLE = math.log(0.01)
MAX_NEW_TOKENS = 80
CACHES = {"float32": 0, "float16": 1}


def difference(rows: Tensor, expected: Tensor) -> dict[str, float]:
    """Return how far rows are apart: where a token has at least 1 %, on average in nats, and by the likeliest token."""
    ours, theirs = (each.double().log_softmax(-1) for each in (rows, expected))
    return {
        "largest": float((ours - theirs)[theirs > PROBABLE].abs().max()),
        "kl": float((theirs.exp() * (theirs - ours)).sum()),
        "argmax": int((ours.argmax(-1) != theirs.argmax(-1)).sum()),
    }


def total(found: list[dict[str, float]], positions: int) -> dict[str, float]:
    """Return differences of several texts as those of one."""
    return {
        "largest": max(each["largest"] for each in found),
        "kl": sum(each["kl"] for each in found) / positions,
        "argmax": sum(each["argmax"] for each in found),
        "positions": positions,
    }


@torch.inference_mode()
def rows_of(pair: Pair, problems: list[WordProblem]) -> dict[str, Any]:
    """Compare a target's rows with transformers', and with its own where tokens are read one after another."""
    exact = AutoModelForCausalLM.from_pretrained(zoo.path("target"), dtype=torch.float32).eval()
    beside, alone, positions, target = [], [], 0, pair.target
    for problem in problems:
        ids = pair.tokenizer(f"{problem.prompt} {problem.solution}").input_ids
        positions += len(ids)
        target.reset()
        rows = target.append(ids, rows=len(ids))
        beside.append(difference(rows, exact(torch.tensor([ids])).logits[0]))
        target.reset()
        alone.append(difference(torch.cat([target.append([token], rows=1) for token in ids]), rows))
    return {"transformers": total(beside, positions), "one_by_one": total(alone, positions)}


def greedy_answers(pair: Pair, own: Llama, problems: list[WordProblem]) -> int:
    """Count the answers at temperature 0 that are llama-cpp-python's own, token for token."""
    equal = 0
    for problem in problems:
        ours = generate(pair, problem.prompt, temperature=0, max_new_tokens=MAX_NEW_TOKENS).token_ids
        prompt_ids = own.tokenize(problem.prompt.encode(), add_bos=True, special=True)
        equal += list(islice(own.generate(prompt_ids, temp=0.0), len(ours))) == ours
    return equal


def one_kind(name: str, folder: Path, rows: int, answers: int) -> dict[str, Any]:
    """Return the row of a type of weights and cache."""
    kind, cache = KINDS[name]
    target, draft = (write_bundled(model, folder, kind) for model in ("target", "worded"))
    pair = load_pair(f"{target}:cache={cache}", draft)
    stored = CACHES[cache]
    own = Llama(
        str(target), n_ctx=512, n_threads=1, type_k=stored, type_v=stored, flash_attn=cache == "float16", verbose=False
    )
    chosen = list(islice(word_problems("validation"), max(rows, answers)))
    found = rows_of(pair, chosen[:rows])
    return {"name": name, **found, "answers": answers, "equal": greedy_answers(pair, own, chosen[:answers])}


def measure(given: Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        rows = [one_kind(name, Path(folder), given.rows, given.answers) for name in KINDS]
    return {"rows": rows, "max_new_tokens": MAX_NEW_TOKENS}


def shown(result: Any) -> dict[str, str]:
    others = "{0[argmax]} of {0[positions]:,}"
    heads = {
        "file": "{name}",
        "largest difference": "{transformers[largest]:.1g}",
        "mean KL in nats": "{transformers[kl]:.0e}",
        "other likeliest token": lambda row: others.format(row["transformers"]),
        "the same, read one by one": lambda row: f"{row['one_by_one']['largest']:.1g}, {others}".format(
            row["one_by_one"]
        ),
        "greedy answers": "{equal} of {answers}",
    }
    return {"agreement": columns(result["rows"], heads)}


if __name__ == "__main__":
    rows, answers = (20, "problems whose rows are compared"), (40, "problems that are answered")
    study(__doc__, RESULTS, "studies/tables/laptop.md", measure, shown, rows=rows, answers=answers)
