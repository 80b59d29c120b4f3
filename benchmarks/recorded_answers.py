"""Record what a draft would have proposed at each place of some answers, and what passes take: for simulations.

    python benchmarks/recorded_answers.py --output tests/support/recorded_answers.json            # the bundled pair
    python benchmarks/recorded_answers.py target.gguf draft.gguf --chat --output tests/support/recorded_answers.json

The target writes each answer by itself, greedily or with shared noise at temperature 1. A place is kept where the draft
would write the same token after the same text (with the same noise). It reads the whole prompt, or its last tokens
only. Token ids are numbered anew in each text, since only their repetition matters. Runs are added to the file.
"""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import torch
from never_slower import CHAT
from pairing import parse, read, write
from torch import Tensor

from cactus_decoding import Pair, generate, load_pair
from cactus_decoding.core.drafting.measuring import measure_passes
from cactus_decoding.core.files.provenance import provenance
from cactus_decoding.core.models.tokenizers import as_chat_prompt
from cactus_decoding.core.sampling.noise import SharedNoise
from cactus_decoding.zoo.word_problems.generator import word_problems

CODE = """def longest(words):
    best = None
    for i in words:
        if best is None or len(i) > len(best):
            best = i
    return best


def shortest(words):
    best = None
    for i in words:
        if best is None or len(i) < len(best):
            best = i
    return best
"""
ASKED = {
    "chat": CHAT[0],
    "letter": CHAT[1],
    "math": "A shop sells pencils in boxes of 12. Ann buys 7 boxes and gives 5 pencils to each of her 9 friends. How "
    "many pencils are left? Think step by step.",
    "code": "Write a Python function that says whether a string is a palindrome, ignoring case and punctuation.",
    "edit": f"Return this code with every variable called i renamed to word.\n\n```python\n{CODE}```",
}
ENDS = 24
"""How many tokens of the prompt a draft reads that reads its end only."""
_ROWS = 32


def kept(pair: Pair, text: list[int], start: int, noise: SharedNoise | None, skipped: int = 0) -> tuple[str, list[int]]:
    """Return at which places the draft writes the same token, as digits, and how sure it is of its best, in percent."""
    same, sure = list[str](), list[int]()
    cache: Any = pair.drafter.model_cache  # type: ignore[attr-defined]
    cache.reset()
    cache.append(text[skipped : start - 1], rows=1) if start - 1 > skipped else None
    for begin in range(start - 1, len(text) - 1, _ROWS):
        block = text[begin : min(begin + _ROWS, len(text) - 1)]
        rows: Tensor = cache.append(block, rows=len(block))[:, : pair.target.vocabulary_size].float().softmax(-1)
        for place, row in enumerate(rows, begin + 1):
            token = int(row.argmax()) if noise is None else noise.token(row, place)
            same.append(str(int(token == text[place])))
            sure.append(round(100 * float(row.max())))
    cache.reset()
    return "".join(same), sure


def record(pair: Pair, prompt: str, temperature: float, tokens: int, seed: int) -> dict[str, Any]:
    """Return one answer."""
    how: dict[str, Any] = {"verification": "coupled", "seed": seed, "temperature": temperature}
    response = generate(pair, prompt, num_speculative_tokens=0, max_new_tokens=tokens, **how)
    start, text = len(response.prompt_token_ids), [*response.prompt_token_ids, *response.token_ids]
    noise = None if temperature == 0 else SharedNoise(seed)
    numbers = {token: number for number, token in enumerate(dict.fromkeys(text))}
    same, sure = kept(pair, text, start, noise)
    ends = kept(pair, text, start, noise, max(start - ENDS, 0))[0]
    return {
        "temperature": temperature,
        "prompt": [numbers[token] for token in text[:start]],
        "answer": [numbers[token] for token in text[start:]],
        "kept": same,
        "kept_after_end_of_prompt": ends,
        "sure": sure,
    }


def main() -> None:
    """Record, and write after each answer."""
    optional = {"nargs": "*", "positional": True, "type": Path, "default": []}
    given = parse(
        __doc__,
        models=([], "target and draft; the bundled pair by default", optional),
        chat=(False, "ask in chat"),
        tokens=256,
        problems=(3, "that the bundled pair answers"),
        output=(None, {"type": Path, "required": True}),
    )
    torch.set_num_threads(1)
    pair = load_pair(*(f"{each}:threads=1" for each in given.models))
    if given.chat:
        asked = {name: as_chat_prompt(pair.tokenizer, text) for name, text in ASKED.items()}
    else:
        asked = {f"problem {i}": each.prompt for i, each in enumerate(islice(word_problems("test"), given.problems))}
    name = " + ".join(each.stem for each in given.models) or "bundled"
    found = read(given.output) if given.output.exists() else {}
    pair.target.reset()
    times = measure_passes(pair.target, pair.drafter, steps=pair.step_seconds)
    about = {"models": [each.name for each in given.models], "tokens": given.tokens, "chat": given.chat}
    answers = found.get(name, {}).get("answers", {})
    for temperature in (0.0, 1.0):
        for i, (kind, prompt) in enumerate(asked.items()):
            key = f"{kind}, temperature {temperature:g}"
            if key not in answers:
                answers[key] = record(pair, prompt, temperature, given.tokens, seed=i)
                print(key, len(answers[key]["answer"]), answers[key]["kept"].count("1"), flush=True)
            found[name] = {"times": times.as_dict(), "answers": answers, "provenance": provenance(about)}
            write(given.output, found, None, None)


if __name__ == "__main__":
    main()
