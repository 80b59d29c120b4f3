"""Log-probabilities that a server's clients are told, under speculation, beside llama.cpp's own without a draft.

    python own_logprobs.py FILE.gguf [FILE.gguf ...] --output FILE

Each file answers with proposals looked up in its text; `llama_cpp.Llama` then reads the same tokens one by one.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from llama_cpp import Llama

from cactus_decoding.files.provenance import provenance
from cactus_decoding.generation.request import Request
from cactus_decoding.integrations.llama_cpp.answering import Answer, prompts_of
from cactus_decoding.integrations.llama_cpp.loading import load_gguf_pair
from cactus_decoding.integrations.llama_cpp.request import read_completion
from cactus_decoding.models.llama_cpp.settings import GgufFile, LlamaCppSettings
from cactus_decoding.types import Outcome

QUESTION = "Write a long story about a ship, in many chapters."
SIZE = 1024


def told(
    path: Path, question: str, tokens: int, proposals: int, threads: int
) -> tuple[list[int], list[int], list[float], int]:
    """Return a prompt, its answer, what a client is told of that, and how many of its tokens were proposed."""
    pair = load_gguf_pair(GgufFile(path, LlamaCppSettings(SIZE, threads=threads)), "suffix", kept_prompts=0)
    body = {"messages": [{"role": "user", "content": question}], "max_tokens": tokens, "temperature": 1, "seed": 1}
    usual = {"num_speculative_tokens": proposals}
    asked = read_completion(body | {"logprobs": True}, usual, chat=True)
    prompt_ids, outcomes = prompts_of(pair, asked)[0], list[Outcome]()

    def count(request: Request, outcome: Outcome) -> None:
        outcomes.append(outcome)

    pieces = list(Answer(pair, asked, prompt_ids, usual).pieces(count))
    logprobs = [each.logprob for piece in pieces for each in piece.logprobs]
    answer = [token for outcome in outcomes for token in outcome.token_ids]
    answer = answer[: len(logprobs)]  # of an end token nothing is told
    return prompt_ids, answer, logprobs, sum(outcome.num_accepted for outcome in outcomes)


def own(path: Path, prompt_ids: list[int], answer: list[int], threads: int) -> list[float]:
    """Return llama.cpp's log-probabilities of an answer that it reads token by token."""
    # both with fused attention, which llama.cpp's own programs choose and its Python class does not
    shape = {"n_ctx": SIZE, "n_threads": threads, "flash_attn": True, "logits_all": True, "verbose": False}
    llama, found = Llama(str(path), **shape), list[float]()
    llama.eval(prompt_ids)
    for token in answer:
        row = llama.scores[llama.n_tokens - 1].astype(np.float64)
        found.append(float(row[token] - row.max() - np.log(np.exp(row - row.max()).sum())))
        llama.eval([token])
    return found


def main() -> None:
    """Print what is found as it comes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--question", default=QUESTION)
    parser.add_argument("--tokens", type=int, default=500)
    parser.add_argument("--proposals", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--output", type=Path, required=True)
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    asked = given.question, given.tokens, given.proposals, given.threads
    for path in given.files:
        prompt_ids, answer, logprobs, accepted = told(path, *asked)
        theirs = own(path, prompt_ids, answer, given.threads)
        apart = np.abs(np.array(logprobs) - np.array(theirs))
        counts = {"file": path.name, "tokens": len(answer), "accepted": accepted}
        rows.append(counts | {"largest": float(f"{apart.max():.2g}"), "mean": float(f"{apart.mean():.2g}")})
        print(rows[-1], flush=True)
    said = {
        "files": [path.name for path in given.files],
        "question": given.question,
        "tokens": given.tokens,
        "proposals": given.proposals,
        "threads": given.threads,
    }
    given.output.write_text(json.dumps({"rows": rows, "provenance": provenance(said)}, indent=1) + "\n")


if __name__ == "__main__":
    main()
