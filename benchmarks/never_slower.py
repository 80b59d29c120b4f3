"""Ways to propose, beside no proposals: a pair answers texts of five kinds, each way in turn.

    python benchmarks/never_slower.py target.gguf draft.gguf --data FOLDER --output results.json
    python benchmarks/never_slower.py target.gguf draft.gguf --ways none draft@3 draft@auto --output results.json
    python benchmarks/never_slower.py bundled bundled --temperature 1 --output results.json
    python benchmarks/never_slower.py target.gguf draft.gguf --prompt-tokens 100 800 4000 --output results.json
    taskset -c 0 python benchmarks/never_slower.py target.gguf draft.gguf --load-after 48 --output results.json

FOLDER holds gsm8k_test.jsonl, human_eval.jsonl.gz and spec_bench.jsonl, as published; without it chat questions are
asked, and the bundled pair word problems; with --prompt-tokens, what the beginning of a page of docs/ says. One thread
is timed by the processor's clock, several by the wall's. All ways share one target, which has read the prompt before an
answer is timed. No draft has: what it reads is timed, since `auto` decides whether it reads at all. It learns from
answer to answer, as it does in a server. With --load-after, another process that wants the same cores starts in the
middle of each answer, and the clock is the wall's. Answers that the output file has are not made again.
"""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from cactus_decoding.core.drafting.automatic import AutoLength
from cactus_decoding.core.files.provenance import provenance
from cactus_decoding.core.files.writing import write_atomically
from cactus_decoding.core.generate import stream
from cactus_decoding.core.models.tokenizers import as_chat_prompt
from cactus_decoding.core.pair import load_pair
from cactus_decoding.zoo.word_problems.generator import word_problems

EDITS = (
    "Rename every variable called i to index.",
    "Add a docstring of one line where one is missing, and change nothing else.",
    "Add type hints to all arguments, and change nothing else.",
    "Make it raise ValueError for an empty argument, and change nothing else.",
)
CHAT = (
    "Why do people enjoy sitting around a fire in the evening?",
    "Write a short letter to a neighbour who has lent you a ladder.",
    "What should I know before I keep bees in a small garden?",
    "Explain to a child why the sea is salty.",
    "Describe a market square early in the morning.",
    "Which three habits help most with learning a language, and why?",
    "Tell me about the history of the bicycle.",
    "How do I make good bread with few ingredients?",
)
WAYS = (
    *("none", "suffix@auto", "draft@auto", "suffix@6", "ngram@6", "draft@1", "draft@3", "draft@7"),
    "none@again",  # what the clock makes of nothing
)


PAGES = Path(__file__).resolve().parents[1] / "docs"
BUSY = [sys.executable, "-c", "while True: pass"]
"""A process that wants a core."""


def long_prompts(lengths: Sequence[int], count: int, tokenizer: Any) -> dict[str, list[str]]:
    """Return questions about texts of so many tokens, by that number."""
    texts = ["\n\n".join(page.read_text() for page in sorted(PAGES.glob("*.md"))[i:]) for i in range(count)]
    tokens = [tokenizer(text[: 8 * max(lengths)], add_special_tokens=False).input_ids for text in texts]
    ask = "Say in a paragraph what this text is about.\n\n"
    return {f"{length}": [ask + tokenizer.decode(each[:length]) for each in tokens] for length in lengths}


def prompts(data: Path | None, count: int, *, bundled: bool) -> dict[str, list[str]]:
    """Return what is asked, by kind of text."""
    if data is None:
        return {"problem": [each.prompt for each in islice(word_problems("test"), count)]} if bundled else {
            "chat": [*CHAT[:count]]
        }  # fmt: skip
    sums = [json.loads(line)["question"] for line in (data / "gsm8k_test.jsonl").read_text().splitlines()]
    with gzip.open(data / "human_eval.jsonl.gz", "rt") as file:
        programs = [json.loads(line) for line in file]
    bench = [json.loads(line) for line in (data / "spec_bench.jsonl").read_text().splitlines()]
    short = [each["turns"][0] for each in bench if each["category"] == "summarization" and len(each["turns"][0]) < 1900]
    chat = [each["turns"][0] for each in bench if each["category"] in ("writing", "roleplay", "humanities", "stem")]
    edits = [
        f"Return this code with one change. {EDITS[i % len(EDITS)]}\n\n```python\n"
        + each["prompt"]
        + each["canonical_solution"]
        for i, each in enumerate(programs[20 : 20 + count])
    ]
    kinds = {
        "math": sums,
        "code": [f"Complete this function.\n\n```python\n{each['prompt']}```" for each in programs],
        "edit": [f"{text}```" for text in edits],
        "summary": short,
        "chat": chat,
    }
    return {kind: texts[:count] for kind, texts in kinds.items()}


class Contenders:
    """One target, with each thing that drafts for it.

    Args:
        target: a model, as `cactus generate` takes it.
        draft: another one.
        threads: of both.
        tokens: of an answer.
        how: temperature, and how to verify.
        load_after: tokens of an answer after which another process wants a core.
    """

    def __init__(
        self, target: str, draft: str, threads: int, tokens: int, how: dict[str, Any], load_after: int | None = None
    ) -> None:
        pair = load_pair(*(f"{each}:threads={threads}" if each.endswith(".gguf") else each for each in (target, draft)))
        self._pairs = {"draft": pair, "suffix": pair.with_draft("suffix"), "ngram": pair.with_draft("ngram")}
        self._tokens, self._how = tokens, how
        self._load_after, alone = load_after, threads == 1 and load_after is None
        self._clock = time.process_time if alone else time.perf_counter
        for each in self._pairs.values():
            each.prepare(AutoLength())

    @property
    def tokenizer(self) -> Any:
        return self._pairs["draft"].tokenizer

    def times(self) -> dict[str, Any]:
        """Return what `auto` knows of passes."""
        pair = self._pairs["draft"]
        return AutoLength().times(pair.target, pair.drafter).as_dict()

    def answer(self, way: str, text: str) -> dict[str, Any]:
        """Answer in chat: tokens, seconds on the wall, milliseconds by the clock, and each step's log.

        A step is how much was proposed and written, and milliseconds. ``draft_read`` is how many tokens of the prompt
        the draft has read in the end.
        """
        source, _, length = way.partition("@")
        pair = self._pairs.get(source) or self._pairs["suffix"]
        count = 0 if source == "none" else "auto:learns=always" if length == "auto" else int(length)
        prompt = text if pair.bundled else as_chat_prompt(pair.tokenizer, text)
        for _ in stream(pair, prompt, temperature=0, max_new_tokens=1, num_speculative_tokens=0):
            pass
        pair.drafter.reset()
        seed = zlib.crc32(text.encode())
        response = stream(
            pair, prompt, max_new_tokens=self._tokens, num_speculative_tokens=count, seed=seed, **self._how
        )
        steps, began, clock, written = list[list[float]](), time.perf_counter(), self._clock(), 0
        with ExitStack() as load:
            for outcome in response:
                before, clock = clock, self._clock()
                steps.append([outcome.num_drafted, outcome.num_emitted, round(1e3 * (clock - before), 1)])
                written += outcome.num_emitted
                if self._load_after in range(written - outcome.num_emitted + 1, written + 1):
                    load.callback(load.enter_context(subprocess.Popen(BUSY)).kill)
        cache, read = getattr(pair.drafter, "model_cache", None), 0
        if cache is not None and cache.length:
            read = len(response.prompt_token_ids) - getattr(pair.drafter, "start", 0)
        return {
            "tokens": len(response.token_ids),
            "seconds": round(time.perf_counter() - began, 3),
            "milliseconds": round(sum(step[2] for step in steps), 1),
            "draft_read": read,
            "steps": steps,
        }


def main() -> None:
    """Answer what is missing, and write after each prompt."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("draft")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--prompts", type=int, default=8, help="of each kind")
    parser.add_argument("--tokens", type=int, default=64, help="of each answer")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--verification", default="token")
    parser.add_argument("--ways", nargs="+", default=list(WAYS), help="none, or DRAFT@LENGTH")
    parser.add_argument("--prompt-tokens", type=int, nargs="+", help="lengths of texts to be asked about")
    parser.add_argument("--load-after", type=int, metavar="TOKENS", help="when another process wants a core")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no answers after so long")
    parser.add_argument("--output", type=Path, required=True)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    until = time.monotonic() + 60 * given.minutes
    how = {"temperature": given.temperature, "verification": given.verification}
    settings = {"threads": given.threads, "tokens": given.tokens} | how
    if given.load_after is not None:
        settings["load_after"] = given.load_after
    stored = json.loads(given.output.read_text()) if given.output.exists() else {"settings": settings, "results": {}}
    if stored["settings"] != settings:
        parser.error(f"{given.output} is of {stored['settings']}, but this run is of {settings}")
    runs: dict[str, dict[str, Any]] = stored["results"]
    contenders = Contenders(given.target, given.draft, given.threads, given.tokens, how, given.load_after)
    about = {"target": Path(given.target).name, "draft": Path(given.draft).name, "prompts": given.prompts}
    if given.prompt_tokens:
        asked = long_prompts(given.prompt_tokens, given.prompts, contenders.tokenizer)
    else:
        asked = prompts(given.data, given.prompts, bundled=given.target == "bundled")
    for i in range(given.prompts):
        for kind, texts in asked.items():
            missing = [way for way in given.ways if f"{kind}/{i}/{way}" not in runs]
            if i >= len(texts) or not missing or time.monotonic() > until:
                continue
            made = {f"{kind}/{i}/{way}": contenders.answer(way, texts[i]) for way in missing}
            for key, run in made.items():
                print(f"{key}: {run['tokens']} tokens, {run['milliseconds'] / run['tokens']:.1f} ms each", flush=True)
            runs |= made
            content = {"settings": settings, "times": contenders.times(), "results": runs}
            content["provenance"] = provenance(about | settings)
            write_atomically(given.output, json.dumps(content) + "\n")
    print("\n".join(summary(runs)))


def summary(runs: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Yield a line for each way: its milliseconds a token, and its speed over that of none."""
    ways = dict.fromkeys(key.rpartition("/")[2] for key in runs)
    spent = {
        way: sum(run["milliseconds"] for key, run in runs.items() if key.endswith(f"/{way}"))
        / sum(run["tokens"] for key, run in runs.items() if key.endswith(f"/{way}"))
        for way in ways
    }
    for way, each in spent.items():
        yield f"{way}: {each:.2f} ms a token" + (f", {spent['none'] / each:.3f} of none" if "none" in spent else "")


if __name__ == "__main__":
    main()
