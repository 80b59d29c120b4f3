"""Ways to propose, beside no proposals: a pair answers texts of five kinds, each way in turn.

    python benchmarks/never_slower.py target.gguf draft.gguf --data FOLDER --output results.json
    python benchmarks/never_slower.py target.gguf draft.gguf --ways none draft@3 draft@auto --output results.json
    python benchmarks/never_slower.py bundled bundled --temperature 1 --output results.json

FOLDER holds gsm8k_test.jsonl, human_eval.jsonl.gz and spec_bench.jsonl, as published; without it chat questions are
asked, and the bundled pair word problems. One thread is timed by the processor's clock, several by the wall's. All ways
share one target, which has read the prompt before an answer is timed. No draft has: what it reads is timed, since
`auto` decides whether it reads at all. It learns from answer to answer, as it does in a server. Answers that the output
file has are not made again.
"""

from __future__ import annotations

import gzip
import json
import sys
import time
import zlib
from argparse import Namespace
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent))

from pairing import benchmark, continued

from cactus_decoding import Pair, load_pair, stream
from cactus_decoding.core.drafting.automatic import AutoLength
from cactus_decoding.core.models.tokenizers import as_chat_prompt
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
PLAIN = "none", "none@again"  # the second says what the clock makes of nothing
WAYS = [PLAIN[0], *["suffix@auto", "draft@auto", "suffix@6", "ngram@6", "draft@1", "draft@3", "draft@7"], PLAIN[1]]


def prompts(data: Path | None, count: int, *, bundled: bool) -> dict[str, list[str]]:
    """Return what is asked, by kind of text."""
    if data is None and bundled:
        return {"problem": [each.prompt for each in islice(word_problems("test"), count)]}
    if data is None:
        return {"chat": [*CHAT[:count]]}
    with gzip.open(data / "human_eval.jsonl.gz", "rt") as file:
        programs = [json.loads(line) for line in file]
    lines = {name: (data / f"{name}.jsonl").read_text().splitlines() for name in ("gsm8k_test", "spec_bench")}
    bench = [(each["category"], each["turns"][0]) for each in map(json.loads, lines["spec_bench"])]
    edits = [
        f"Return this code with one change. {EDITS[i % len(EDITS)]}\n\n"
        f"```python\n{each['prompt']}{each['canonical_solution']}```"
        for i, each in enumerate(programs[20 : 20 + count])
    ]
    return {
        "math": [json.loads(line)["question"] for line in lines["gsm8k_test"][:count]],
        "code": [f"Complete this function.\n\n```python\n{each['prompt']}```" for each in programs[:count]],
        "edit": edits,
        "summary": [text for kind, text in bench if kind == "summarization" and len(text) < 1900][:count],
        "chat": [text for kind, text in bench if kind in ("writing", "roleplay", "humanities", "stem")][:count],
    }


def answer(pairs: Mapping[str, Pair], way: str, text: str, given: Namespace) -> dict[str, Any]:
    """Answer in chat: tokens, seconds on the wall, milliseconds by the clock, and each step's log.

    A step is how much was proposed and written, and milliseconds.
    """
    clock = time.process_time if given.threads == 1 else time.perf_counter
    source, _, length = way.partition("@")
    pair = pairs.get(source) or pairs["suffix"]
    count = 0 if source == "none" else "auto:learns=always" if length == "auto" else int(length)
    prompt = text if pair.bundled else as_chat_prompt(pair.tokenizer, text)
    for _ in stream(pair, prompt, temperature=0, max_new_tokens=1, num_speculative_tokens=0):
        pass
    pair.drafter.reset()
    response = stream(
        pair, prompt, max_new_tokens=given.tokens, num_speculative_tokens=count, temperature=given.temperature,
        verification="token", seed=zlib.crc32(text.encode()),
    )  # fmt: skip
    steps, began, now = list[list[float]](), time.perf_counter(), clock()
    for outcome in response:
        before, now = now, clock()
        steps.append([outcome.num_drafted, outcome.num_emitted, round(1e3 * (now - before), 1)])
    return {
        "tokens": len(response.token_ids),
        "seconds": round(time.perf_counter() - began, 3),
        "milliseconds": round(sum(step[2] for step in steps), 1),
        "steps": steps,
    }


def measure(given: Namespace) -> Iterator[dict[str, Any]]:
    """Answer what is missing; yields after each prompt."""
    settings = {name: getattr(given, name) for name in ("threads", "tokens", "temperature")} | {"verification": "token"}
    runs = continued(given.output, settings, "results")
    models = [f"{each}:threads={given.threads}" if each.suffix == ".gguf" else str(each)
              for each in (given.target, given.draft)]  # fmt: skip
    pair = load_pair(*models)
    pairs = {"draft": pair, "suffix": pair.with_draft("suffix"), "ngram": pair.with_draft("ngram")}
    for each in pairs.values():
        each.prepare(AutoLength())
    asked = prompts(given.data, given.prompts, bundled=str(given.target) == "bundled")
    for i in range(given.prompts):
        for kind, texts in asked.items():
            missing = [way for way in given.ways if f"{kind}/{i}/{way}" not in runs]
            if i >= len(texts) or not missing:
                continue
            runs |= {f"{kind}/{i}/{way}": answer(pairs, way, texts[i], given) for way in missing}
            times = AutoLength().times(pair.target, pair.drafter).as_dict()
            yield {"settings": settings, "times": times, "results": runs}
            print("; ".join(f"{way} {speed:.1f}" for way, speed in speeds(runs).items()), flush=True)


def speeds(runs: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Return tokens per second by way, over all answers."""
    found = dict.fromkeys((key.rpartition("/")[2] for key in runs), 0.0)
    for way in found:
        own = [run for key, run in runs.items() if key.endswith(f"/{way}")]
        found[way] = 1000 * sum(run["tokens"] for run in own) / sum(run["milliseconds"] for run in own)
    return found


if __name__ == "__main__":
    benchmark(
        __doc__, "never_slower", measure, indent=None, target=Path, draft=Path,
        data=(None, {"type": Path}),
        prompts=(8, "of each kind"),
        tokens=(64, "of each answer"),
        threads=1,
        temperature=0.0,
        ways=(WAYS, "none, or DRAFT@LENGTH"),
    )  # fmt: skip
