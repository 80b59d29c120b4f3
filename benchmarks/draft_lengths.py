"""Tokens per second by rule and by number of proposals, over plain decoding, of one pair in one process, in turn.

    python benchmarks/draft_lengths.py twins                                twins of the bundled pair: see twins.py
    python benchmarks/draft_lengths.py TARGET DRAFT --problems FILE         two folders, and GSM8K's problems in chat

A cell is a rule at a number of proposals. Every cell answers each prompt in turn with all others, and is compared with
plain decoding of that prompt. Prompts are read by each answer, and that is timed. An answer is timed again, at most
twice, while other processes have more than a tenth of the machine, and the least disturbed time counts. What the output
file has is not measured again, so that a run can be continued; prompts are always finished.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from contenders import LocalContender, race
from end_to_end_worker import ours, transformers_generate
from pairing import RESULTS, parser, read, write
from twins import SHAPES, twin_pair

from cactus_decoding import load_pair
from cactus_decoding.core.drafting.automatic import AutoLength
from cactus_decoding.core.models.tokenizers import as_chat_prompt
from cactus_decoding.core.pair import Pair
from cactus_decoding.lab.evaluation.intervals import bootstrapped, resampled_medians
from cactus_decoding.zoo.word_problems import word_problems

RULES: dict[str, dict[str, object]] = {
    "lossless": {"rule": "lossless"},
    "Cactus 1": {"rule": "cactus:delta=1"},
    "clamped 2": {"rule": "clamped:width=2"},
    "clamped 2, digits protected": {"rule": "clamped:width=2", "protect": "digits"},
}
PLAIN = "plain"
Answers = dict[str, dict[str, dict[str, Any]]]
"""Tokens, seconds and steps, by the number of the prompt and by cell."""
DISTURBED, REPEATS = 0.1, 2
"""Share of the machine that other processes may have before an answer is timed again, and how often that may be."""
WARM_UP = {"text": "Question: What is 1 + 1?\nAnswer:", "temperature": 1.0, "max_new_tokens": 4, "seed": 0}


def cells(proposals: Sequence[int], rules: Sequence[str], others: Sequence[str]) -> list[str]:
    """Return the names of what is compared: ``plain``, ``RULE|PROPOSALS``, and the others."""
    return [PLAIN, *others, *(f"{rule}|{count}" for rule in rules for count in proposals)]


def contender(pair: Pair, cell: str) -> LocalContender:
    """Return what answers for a cell: our loop, or transformers by ``generate`` and ``assisted|PROPOSALS``."""
    name, _, count = cell.partition("|")
    target = pair.target.model
    if name == PLAIN:
        return LocalContender(cell, ours(pair, RULES["lossless"], 0))
    if name == "generate":
        return LocalContender(cell, transformers_generate(target, pair.tokenizer))
    if name == "assisted":
        draft = pair.drafter.model  # type: ignore[attr-defined]
        return LocalContender(cell, transformers_generate(target, pair.tokenizer, draft, int(count)))
    return LocalContender(cell, ours(pair, RULES[name], count))


def measure(
    contenders: Sequence[LocalContender], requests: Sequence[Mapping[str, object]], answers: Answers, seconds: float
) -> Iterator[int]:
    """Add what is missing to the answers, as far as time allows; yield each prompt's number when it is finished."""
    began, longest = time.perf_counter(), 0.0
    race(contenders, [WARM_UP], warm_ups=0)
    for i, request in enumerate(requests):
        started = time.perf_counter()
        if str(i) in answers:
            continue
        if started + longest > began + seconds:
            return
        replies = {name: reply for name, (reply,) in race(contenders, [request], first=i, warm_ups=0).items()}
        for _ in range(REPEATS):
            again = [each for each in contenders if replies[each.name]["others"] > DISTURBED]
            for name, (reply,) in race(again, [request], warm_ups=0).items():
                replies[name] = min(replies[name], reply, key=lambda each: each["others"])
        answers[str(i)] = {contender.name: _counted(replies[contender.name]) for contender in contenders}
        longest = max(longest, time.perf_counter() - started)
        yield i


def _counted(reply: Mapping[str, Any]) -> dict[str, Any]:
    steps = {"steps": reply["steps"]} if "steps" in reply else {}
    others = {"others": round(reply["others"], 3)}
    return {"tokens": len(reply["tokens"]), "seconds": round(reply["seconds"], 4), **steps, **others}


def summary(answers: Answers) -> dict[str, Any]:
    """Return medians over prompts of each cell, and of each rule where it is fastest over lossless where that is.

    A ratio stands with its 95 % interval, null where there are too few prompts to tell.
    """
    names = list(next(iter(answers.values())))
    rates = {name: np.array([row[name]["tokens"] / row[name]["seconds"] for row in answers.values()]) for name in names}
    over_plain = {name: _ratio(rates[name], rates[PLAIN]) for name in names}
    table = {
        name: {
            "tokens_per_second": round(float(np.median(rates[name])), 2),
            "over_plain": over_plain[name],
            "tokens_per_step": _tokens_per_step([row[name] for row in answers.values()]),
        }
        for name in names
    }
    best: dict[str, Any] = {}
    for rule in RULES:
        own = [name for name in names if name.startswith(f"{rule}|") and name != f"{rule}|auto"]
        if own:
            cell = max(own, key=lambda name: over_plain[name][0])
            best[rule] = {"cell": cell, "over_plain": over_plain[cell]}
    for each in best.values():
        if "lossless" in best:
            each["over_lossless_at_its_best"] = _ratio(rates[each["cell"]], rates[best["lossless"]["cell"]])
    disturbed = sum(each["others"] > DISTURBED for row in answers.values() for each in row.values())
    return {"prompts": len(answers), "disturbed_answers": disturbed, "cells": table, "best": best}


def _tokens_per_step(rows: Sequence[Mapping[str, Any]]) -> float | None:
    steps = sum(row.get("steps", 0) for row in rows)
    return round(sum(row["tokens"] for row in rows) / steps, 2) if steps else None


def _ratio(ours: np.ndarray, theirs: np.ndarray) -> list[float | None]:
    """Return the median of a ratio, and the ends of its interval."""
    ratios = ours / theirs
    found = bootstrapped(float(np.median(ratios)), resampled_medians(ratios[:, None])[:, 0], len(ratios))
    return [round(found.value, 3), *((round(end, 3) for end in found[1:]) if found.has_ends else (None, None))]


def as_table(found: Mapping[str, Any]) -> str:
    """Return a summary as lines of text."""
    lines = [f"{'cell':34} tokens/s  over plain              tokens per step"]
    for name, row in found["cells"].items():
        value, low, high = row["over_plain"]
        ends = "" if low is None else f" [{low:.2f}, {high:.2f}]"
        lines.append(f"{name:34} {row['tokens_per_second']:8.2f}  {value:5.2f}{ends:18} {row['tokens_per_step'] or ''}")
    return "\n".join(lines)


def requests_of(texts: Sequence[str], tokens: int) -> list[dict[str, object]]:
    """Return what every cell is asked."""
    return [
        {"text": text, "temperature": 1.0, "max_new_tokens": tokens, "seed": seed} for seed, text in enumerate(texts)
    ]


def chat_problems(pair: Pair, path: Path, count: int) -> list[str]:
    """Return GSM8K's first problems as the target's chat template puts them."""
    with path.open(encoding="utf-8") as file:
        return [as_chat_prompt(pair.tokenizer, json.loads(line)["question"]) for line in islice(file, count)]


def main() -> None:
    """Measure what is missing, print and write."""
    made = parser(
        __doc__,
        models=([Path], "twins, or the folders of a target and a draft"),
        shapes=(["0.9B", "0.04B"], "of twins", {"nargs": 2, "choices": SHAPES}),
        problems=(None, "GSM8K's test problems, for folders", {"type": Path}),
        dtype="float32",
        threads=2,
        proposals=[1, 3, 5, 7, 11, 15],
        rules=([*RULES], {"choices": RULES}),
        others=(["generate", "assisted|7", "lossless|auto"], {"nargs": "*"}),
        prompts=10,
        tokens=(200, "of an answer at most"),
        minutes=(7.0, "begin no prompt that would end later"),
        output=RESULTS / "twins.json",
    )
    given = made.parse_args()
    twins = given.models == [Path("twins")]
    if not twins and (len(given.models) != 2 or given.problems is None):
        made.error("give twins, or two folders and --problems")
    torch.set_num_threads(given.threads)
    settings = {name: value for name, value in vars(given).items() if name not in ("minutes", "output", "problems")}
    settings["models"] = [model.name for model in given.models]
    stored = read(given.output) if given.output.exists() else {"settings": settings, "answers": {}}
    if stored["settings"] != settings:
        made.error(f"{given.output} is of {stored['settings']}, but this run is of {settings}")
    dtype = getattr(torch, given.dtype)
    if twins:
        pair = twin_pair(*(SHAPES[name] for name in given.shapes), dtype=dtype, device="cpu")
        texts = [problem.prompt for problem in islice(word_problems("test", seed=1), given.prompts)]
    else:
        pair = load_pair(*map(str, given.models), dtype=dtype, device="cpu", kept_prompts=0)
        texts = chat_problems(pair, given.problems, given.prompts)
    requests = requests_of(texts, given.tokens)
    began = time.perf_counter()
    pair.prepare(AutoLength())
    stored.setdefault("auto_measured_seconds", round(time.perf_counter() - began, 2))
    stored["pass_times"] = pair.pass_times(AutoLength())
    contenders = [contender(pair, name) for name in cells(given.proposals, given.rules, given.others)]
    for i in measure(contenders, requests, stored["answers"], 60 * given.minutes):
        stored["summary"] = summary(stored["answers"])
        write(given.output, stored, settings)
        print(f"prompt {i + 1} of {len(requests)} at {time.perf_counter() - began:.0f} s", flush=True)
    if stored["answers"]:
        print(as_table(summary(stored["answers"])))
    left = len(requests) - len(stored["answers"])
    print(f"written to {given.output}" + (f"; {left} prompts are left for another run" if left else ""))


if __name__ == "__main__":
    main()
