"""Answers by their exact probabilities beside masking token by token, whose distribution is enumerated.

python exact_choice.py MODEL.gguf
"""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pairing import benchmark

from cactus_decoding import Pair, generate, load_pair
from cactus_decoding.core.models.tokenizers import as_chat_prompt

QUESTIONS = {
    "Name a country. Answer with its name alone.": ["New Zealand", "Nepal", "France"],
    "Which city is the largest in the USA? Answer with its name alone.": ["New Delhi", "Los Angeles", "Chicago"],
    "Who wrote Hamlet? Answer with the name alone.": ["William Wordsworth", "Shakespeare"],
    "Is the sky green? Answer yes or no.": ["yes", "no", "Yes, it is green"],
}


def masked_probability(pair: Pair, prompt_ids: list[int], answer: list[int], answers: list[list[int]]) -> float:
    """Return how likely masking token by token writes an answer: the model's rows, renormalised at each token."""
    probability, ends = 1.0, pair.stop_token_ids
    for n in range(len(answer) + 1):
        alike = [other for other in answers if other[:n] == answer[:n]]
        allowed = sorted({other[n] for other in alike if len(other) > n})
        may_end = any(len(other) == n for other in alike)
        if len(allowed) + may_end == 1:
            continue
        pair.forget()
        row = pair.target.append([*prompt_ids, *answer[:n]], 1)[0].double().softmax(-1)
        ended = row[ends].sum().item() if may_end else 0.0
        chance = row[answer[n]].item() if n < len(answer) else ended
        probability *= chance / (row[allowed].sum().item() + ended)
    return probability


def measure(given: Namespace) -> Iterator[dict[str, Any]]:
    pair, rows = load_pair(str(given.model), "suffix"), list[dict[str, Any]]()
    for question, texts in QUESTIONS.items():
        prompt = as_chat_prompt(pair.tokenizer, question)
        prompt_ids = list(pair.tokenizer(prompt).input_ids)
        answers = [list(pair.tokenizer(text, add_special_tokens=False).input_ids) for text in texts]
        for choice, answer in zip(generate(pair, prompt, choices=texts, seed=0).choices, answers, strict=True):
            masked = masked_probability(pair, prompt_ids, answer, answers)
            rows.append({"question": question} | choice.as_dict() | {"masked": masked})
            print(json.dumps(rows[-1]), flush=True)
    yield {"rows": rows}


if __name__ == "__main__":
    benchmark(__doc__, "exact_choice", measure, model=Path)
