"""Count what look-ups propose and what is kept of it, on a model's greedy answers to texts of four kinds.

The answers are written once, by ``collect``, and ``replay`` goes through them without a model: at temperature 0 a
proposal is kept as far as it agrees with the answer, so that the counts are exact. Prompts come from a folder with
``gsm8k_test.jsonl`` and ``spec_bench.jsonl`` as published, and from files of this package, which are to be edited.
``beside`` has llama.cpp's server answer the same prompts, edits alone, with its own look-ups.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from pairing import RESULTS, parser, read, write
from servers import llama_server, running

import cactus_decoding
from cactus_decoding.core.drafting.lookup import NgramDrafter, SuffixDrafter
from cactus_decoding.core.types import Drafter

LookUp = Callable[[list[int], int], list[int]]
LIMIT = 10
"""Proposals per step at most."""
EDITS = {
    "core/rules/typical.py": "the attribute `alpha` to `share`",
    "core/rules/top_k.py": "the attribute `residual` to `remainder`",
    "core/rules/lenience.py": "the class to `Lenient`",
    "core/rules/ensemble.py": "the attribute `weight` to `share`",
    "core/rules/mars.py": "the attribute `ratio` to `share`",
    "core/drafting/lookup.py": "the class to `Finder`",
    "core/rules/lossless.py": "the class to `Exact`",
    "core/rules/cascade.py": "the class to `Copies`",
}
"""Files, and what is to be renamed in them."""


def prompts(data: Path, count: int) -> Iterator[tuple[str, str]]:
    """Yield kinds of text and questions."""
    package = Path(cactus_decoding.__file__).parent
    for name, what in [*EDITS.items()][:count]:
        code = (package / name).read_text()[:1200]
        yield "a file to be edited", f"Rename {what} and write the whole file again.\n\n```python\n{code}\n```"
    bench = [json.loads(line) for line in (data / "spec_bench.jsonl").read_text().splitlines()]
    texts = [each["turns"][0] for each in bench if each["category"] == "summarization"]
    yield from (("summarising", text) for text in [text for text in texts if len(text) < 2000][:count])
    problems = [json.loads(line)["question"] for line in (data / "gsm8k_test.jsonl").read_text().splitlines()[:count]]
    yield from (("GSM8K", problem) for problem in problems)
    chat = [each["turns"][0] for each in bench if each["category"] in ("writing", "roleplay", "humanities")]
    yield from (("free chat", text) for text in chat[:: max(1, len(chat) // count)][:count])


def collect(target: str, data: Path, count: int, num_tokens: int, output: Path) -> None:
    """Write the tokens of prompts and greedy answers, a line each."""
    from cactus_decoding import generate, load_pair
    from cactus_decoding.core.models.tokenizers import as_chat_prompt

    pair = load_pair(target)
    with output.open("w") as file:
        for kind, question in prompts(data, count):
            prompt = as_chat_prompt(pair.tokenizer, question)
            answer = generate(pair, prompt, temperature=0.0, max_new_tokens=num_tokens).token_ids
            text = [int(token) for token in pair.tokenizer(prompt).input_ids]
            print(json.dumps({"kind": kind, "prompt": text, "answer": answer}), file=file, flush=True)


def of(drafter: Drafter) -> LookUp:
    """Return what a drafter proposes."""
    return lambda text, limit: drafter.propose(text, limit, lambda logits, ids: logits, None).token_ids


def llama_cpp_python(text: list[int], limit: int) -> list[int]:
    """Return what `LlamaPromptLookupDecoding` proposes, by its default size of n-grams."""
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    return LlamaPromptLookupDecoding.find_candidate_pred_tokens(np.array(text), 2, limit).tolist()


LOOK_UPS: dict[str, Callable[[], LookUp]] = {
    "`suffix`": lambda: of(SuffixDrafter()),
    "`suffix:min_token_prob=0.3`": lambda: of(SuffixDrafter(0.3)),
    "`suffix:min_token_prob=0`": lambda: of(SuffixDrafter(0)),
    "`ngram`": lambda: of(NgramDrafter()),
    "llama-cpp-python's prompt lookup": lambda: llama_cpp_python,
}


def replay(answer: dict[str, Any], look_up: LookUp) -> Counter[str]:
    """Return the counts of a response in which an answer is the target's, those of passes by their width too."""
    text, start, counts = [*answer["prompt"], *answer["answer"]], len(answer["prompt"]), Counter[str]()
    while start < len(text):
        limit = min(LIMIT, len(text) - start - 1)
        proposed = look_up(text[:start], limit) if limit else []
        kept = next((i for i, token in enumerate(proposed) if token != text[start + i]), len(proposed))
        counts.update(steps=1, proposed=len(proposed), accepted=kept)
        counts.update({f"passes over {1 + len(proposed)}": 1})
        start += kept + 1
    return counts


LLAMA_CPP: dict[str, tuple[str, ...]] = {
    "ngram-cache": (),
    "ngram-simple": ("--spec-ngram-simple-size-m", str(LIMIT)),
    "ngram-simple, of 3 tokens": ("--spec-ngram-simple-size-m", str(LIMIT), "--spec-ngram-simple-size-n", "3"),
}
"""Look-ups of llama.cpp's server, with what they propose at most; it looks up 12 tokens where nobody says."""


def beside(binary: Path, target: Path, answers: list[dict[str, Any]]) -> dict[str, Counter[str]]:
    """Return the counts of llama.cpp's server, greedy, on the prompts of answers, and of `suffix` on what it writes."""
    found = {}
    for name, options in LLAMA_CPP.items():
        kind = ("--spec-type", name.partition(",")[0], "--spec-draft-n-max", str(LIMIT))
        counts = found[name] = Counter[str]()
        with running(llama_server(binary, target, None, 1, 1024, *kind, *options)) as server:
            for answer in answers:
                asked = {"prompt": answer["prompt"], "n_predict": len(answer["answer"]), "temperature": 0}
                told = server.post("/completion", asked | {"return_tokens": True})
                timings = told["timings"]
                accepted = timings.get("draft_n_accepted", 0)
                counts.update(steps=timings["predicted_n"] - accepted, accepted=accepted)
                counts.update(proposed=timings.get("draft_n", 0))
                written = answer | {"answer": told["tokens"]}
                counts.update({f"suffix {key}": count for key, count in replay(written, of(SuffixDrafter())).items()})
                print(name, dict(counts), flush=True)
    return found


def main() -> None:
    """Collect, or replay, and write."""
    made = parser(
        __doc__,
        way=(str, {"choices": ["collect", "replay", "beside"]}),
        answers=([Path], "files of answers: of beside one, of collect the one that is written"),
        target=(None, "the GGUF file, or a folder, that writes the answers", {"type": Path}),
        data=(None, "of collect: the folder of the tasks' files", {"type": Path}),
        llama_server=(None, "of beside", {"type": Path}),
        prompts=(6, "of each kind"),
        tokens=(64, "of an answer at most"),
    )
    given = made.parse_args()
    needed = {"collect": ("target", "data"), "beside": ("target", "llama_server"), "replay": ()}[given.way]
    if missing := [name for name in needed if getattr(given, name) is None]:
        made.error(f"{given.way} needs --{missing[0].replace('_', '-')}")
    if given.way == "collect":
        return collect(str(given.target), given.data, given.prompts, given.tokens, given.answers[0])
    stored = {path.stem: [json.loads(line) for line in path.read_text().splitlines()] for path in given.answers}
    if given.way == "beside":
        kept = RESULTS / "look_ups_llama_cpp.json"
        found = read(kept)["results"] if kept.exists() else {}
        for name, answers in stored.items():
            edits = [each for each in answers if each["kind"] == "a file to be edited"]
            found[name] = beside(given.llama_server, given.target, edits)
        return write(kept, {"results": found}, {"answers": [*found], "limit": LIMIT})
    results: dict[str, dict[str, dict[str, Counter[str]]]] = {}
    for name, answers in stored.items():
        results[name] = {look_up: defaultdict(Counter) for look_up in LOOK_UPS}
        for look_up, make in LOOK_UPS.items():
            for answer in answers:
                results[name][look_up][answer["kind"]] += replay(answer, make())
    return write(RESULTS / "look_ups.json", {"results": results}, {"answers": [*stored], "limit": LIMIT})


if __name__ == "__main__":
    main()
