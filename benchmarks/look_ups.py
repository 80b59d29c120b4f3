"""Count what look-ups propose and what is kept of it, on a model's greedy answers to texts of four kinds.

    python look_ups.py collect ANSWERS --target TARGET --data FOLDER
    python look_ups.py replay ANSWERS …
    python look_ups.py beside ANSWERS --target TARGET.gguf --llama-server PATH

The answers are written once, and `replay` goes through them without a model: at temperature 0 a proposal is kept as far
as it agrees with the answer, so that the counts are exact. FOLDER is that of never_slower.py. `beside` has llama.cpp's
server answer the same prompts, edits alone, with its own look-ups.
"""

from __future__ import annotations

import json
from argparse import Namespace
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding
from never_slower import prompts
from pairing import RESULTS, kept, parse, write
from servers import llama_server, running

from cactus_decoding import generate, load_pair
from cactus_decoding.core.drafting.lookup import NgramDrafter, SuffixDrafter
from cactus_decoding.core.models.tokenizers import as_chat_prompt
from cactus_decoding.core.types import Drafter

LookUp = Callable[[list[int], int], list[int]]
LIMIT = 10
"""Proposals per step at most."""
KINDS = {"edit": "a file to be edited", "summary": "summarising", "math": "GSM8K", "chat": "free chat"}
LLAMA_CPP: dict[str, tuple[str, ...]] = {
    "ngram-cache": (),
    "ngram-simple": ("--spec-ngram-simple-size-m", str(LIMIT)),
    "ngram-simple, of 3 tokens": ("--spec-ngram-simple-size-m", str(LIMIT), "--spec-ngram-simple-size-n", "3"),
}
"""Look-ups of llama.cpp's server, with what they propose at most; it looks up 12 tokens where nobody says."""


def collect(given: Namespace) -> None:
    """Write the tokens of prompts and greedy answers, a line each."""
    pair, asked = load_pair(str(given.target)), prompts(given.data, given.prompts, bundled=False)
    with given.answers[0].open("w") as file:
        for kind, title in KINDS.items():
            for question in asked[kind]:
                prompt = as_chat_prompt(pair.tokenizer, question)
                answer = generate(pair, prompt, temperature=0.0, max_new_tokens=given.tokens)
                text = {"prompt": answer.prompt_token_ids, "answer": answer.token_ids}
                print(json.dumps({"kind": title} | text), file=file, flush=True)


def of(drafter: Drafter) -> LookUp:
    """Return what a drafter proposes."""
    return lambda text, limit: drafter.propose(text, limit, lambda logits, ids: logits, None).token_ids


def llama_cpp_python(text: list[int], limit: int) -> list[int]:
    """Return what `LlamaPromptLookupDecoding` proposes, by its default size of n-grams."""
    return LlamaPromptLookupDecoding.find_candidate_pred_tokens(np.array(text), 2, limit).tolist()


LOOK_UPS: dict[str, Callable[[], LookUp]] = {
    "`suffix`": lambda: of(SuffixDrafter()),
    "`suffix:min_token_prob=0.3`": lambda: of(SuffixDrafter(0.3)),
    "`suffix:min_token_prob=0`": lambda: of(SuffixDrafter(0)),
    "`ngram`": lambda: of(NgramDrafter()),
    "llama-cpp-python's prompt lookup": lambda: llama_cpp_python,
}


def replayed(answer: dict[str, Any], look_up: LookUp) -> Counter[str]:
    """Return the counts of a response in which an answer is the target's, those of passes by their width too."""
    text, start, counts = [*answer["prompt"], *answer["answer"]], len(answer["prompt"]), Counter[str]()
    while start < len(text):
        limit = min(LIMIT, len(text) - start - 1)
        proposed = look_up(text[:start], limit) if limit else []
        same = next((i for i, token in enumerate(proposed) if token != text[start + i]), len(proposed))
        counts.update(steps=1, proposed=len(proposed), accepted=same)
        counts.update({f"passes over {1 + len(proposed)}": 1})
        start += same + 1
    return counts


def replay(given: Namespace) -> Iterator[tuple[str, Any]]:
    for name, answers in stored(given.answers).items():
        found: dict[str, dict[str, Counter[str]]] = {look_up: defaultdict(Counter) for look_up in LOOK_UPS}
        for look_up, make in LOOK_UPS.items():
            for answer in answers:
                found[look_up][answer["kind"]] += replayed(answer, make())
        yield name, found


def beside(given: Namespace) -> Iterator[tuple[str, Any]]:
    """Yield the counts of llama.cpp's server, greedy, on the prompts of answers, and of `suffix` on what it writes."""
    for file, answers in stored(given.answers).items():
        found = {}
        for name, options in LLAMA_CPP.items():
            kind = ("--spec-type", name.partition(",")[0], "--spec-draft-n-max", str(LIMIT))
            counts = found[name] = Counter[str]()
            with running(llama_server(given.llama_server, given.target, None, 1, 1024, *kind, *options)) as server:
                for answer in (each for each in answers if each["kind"] == KINDS["edit"]):
                    asked = {"prompt": answer["prompt"], "n_predict": len(answer["answer"]), "temperature": 0}
                    told = server.post("/completion", asked | {"return_tokens": True})
                    timings = told["timings"]
                    accepted = timings.get("draft_n_accepted", 0)
                    counts.update(steps=timings["predicted_n"] - accepted, accepted=accepted)
                    counts.update(proposed=timings.get("draft_n", 0))
                    own = replayed(answer | {"answer": told["tokens"]}, of(SuffixDrafter()))
                    counts.update({f"suffix {key}": count for key, count in own.items()})
            print(name, dict(counts), flush=True)
        yield file, found


def stored(paths: list[Path]) -> dict[str, list[dict[str, Any]]]:
    """Return answers by the names of their files."""
    return {path.stem: [json.loads(line) for line in path.read_text().splitlines()] for path in paths}


def main() -> None:
    given = parse(
        __doc__,
        way=(str, {"choices": ["collect", "replay", "beside"]}),
        answers=([Path], "files of answers: of beside one, of collect the one that is written"),
        target=(None, "the GGUF file, or a folder, that writes the answers", {"type": Path}),
        data=(None, "of collect: the folder of the tasks' files", {"type": Path}),
        llama_server=(None, "of beside", {"type": Path}),
        prompts=(6, "of each kind"),
        tokens=(64, "of an answer at most"),
    )
    if given.way == "collect":
        return collect(given)
    output = RESULTS / ("look_ups.json" if given.way == "replay" else "look_ups_llama_cpp.json")
    found = {} if given.way == "replay" else kept(output, "results")
    found |= dict(replay(given) if given.way == "replay" else beside(given))
    return write(output, {"results": found}, {"answers": [*found], "limit": LIMIT})


if __name__ == "__main__":
    main()
