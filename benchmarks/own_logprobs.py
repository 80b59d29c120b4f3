"""Log-probabilities that a server's clients are told, under speculation, beside llama.cpp's own without a draft.

    python own_logprobs.py FILE.gguf [FILE.gguf ...]

Each file answers questions, with proposals looked up in its text, until there are so many tokens; `llama_cpp.Llama`
reads the same ones one by one. The control is what its own rows differ by when it reads as many at once as a step does.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from llama_cpp import Llama
from pairing import benchmark

from cactus_decoding.core.types import Outcome
from cactus_decoding.engines.llama_cpp.answering import pieces
from cactus_decoding.engines.llama_cpp.models.settings import GgufFile, LlamaCppSettings
from cactus_decoding.engines.llama_cpp.pairs import load_gguf_pair
from cactus_decoding.engines.llama_cpp.server.completion import prompts_of, read_completion, response_to

QUESTIONS = (
    "Write a long story about a ship, in many chapters.",
    "Write a Python program that plays chess, with comments.",
    "Explain in detail how bread is made.",
    "Describe the city of Rome and its history.",
)
SIZE = 1024


def told(path: Path, question: str, given: Namespace, tokens: int) -> tuple[list[int], list[int], list[float], int]:
    """Return a prompt, its answer, what a client is told of that, and how many of its tokens were proposed."""
    settings = LlamaCppSettings(SIZE, threads=given.threads)
    pair = load_gguf_pair(GgufFile(path, settings), "suffix", kept_prompts=0)
    body = {"messages": [{"role": "user", "content": question}], "max_tokens": tokens, "temperature": 1, "seed": 1}
    usual = {"num_speculative_tokens": given.proposals}
    asked = read_completion(body | {"logprobs": True}, usual, chat=True, pair=pair)
    prompt_ids, outcomes = prompts_of(pair, asked)[0], list[Outcome]()
    response, number = response_to(pair, asked, prompt_ids), asked.body.num_logprobs
    made = pieces(response, lambda _, each: outcomes.append(each), number)
    logprobs = [each.logprob for piece in made for each in piece.logprobs]
    answer = [token for outcome in outcomes for token in outcome.token_ids]
    answer = answer[: len(logprobs)]  # of an end token nothing is told
    return prompt_ids, answer, logprobs, sum(outcome.num_accepted for outcome in outcomes)


def own(path: Path, prompt_ids: list[int], answer: list[int], threads: int, at_once: int = 1) -> list[float]:
    """Return llama.cpp's log-probabilities of an answer that it reads by so many tokens at once."""
    # both with fused attention, which llama.cpp's own programs choose and its Python class does not
    shape = {"n_ctx": SIZE, "n_threads": threads, "flash_attn": True, "logits_all": True, "verbose": False}
    llama, found = Llama(str(path), **shape), list[float]()
    llama.eval(prompt_ids)
    for start in range(0, len(answer), at_once):
        llama.eval(answer[start : start + at_once])
    for place, token in enumerate(answer, len(prompt_ids) - 1):
        row = llama.scores[place].astype(np.float64)
        found.append(float(row[token] - row.max() - np.log(np.exp(row - row.max()).sum())))
    return found


def measure(given: Namespace) -> Iterator[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for path in given.files:
        apart, apart_themselves, accepted, answers = list[float](), list[float](), 0, 0
        for question in given.question or QUESTIONS:
            if (left := given.tokens - len(apart)) <= 0:
                break
            prompt_ids, answer, logprobs, kept = told(path, question, given, left)
            one_by_one = np.array(own(path, prompt_ids, answer, given.threads))
            at_once = np.array(own(path, prompt_ids, answer, given.threads, given.proposals + 1))
            apart += np.abs(np.array(logprobs) - one_by_one).tolist()
            apart_themselves += np.abs(at_once - one_by_one).tolist()
            accepted, answers = accepted + kept, answers + 1
        found = {"largest": max(apart), "mean": np.mean(apart)}
        found |= {"control_largest": max(apart_themselves), "control_mean": np.mean(apart_themselves)}
        counts = {"file": path.name, "tokens": len(apart), "answers": answers, "accepted": accepted}
        rows.append(counts | {name: float(f"{value:.2g}") for name, value in found.items()})
        print(rows[-1], flush=True)
        yield {"rows": rows}


if __name__ == "__main__":
    one = ([], "one instead of those of this file; may be repeated", {"action": "append"})
    benchmark(__doc__, "own_logprobs", measure, files=[Path], question=one, tokens=500, proposals=3, threads=1)
