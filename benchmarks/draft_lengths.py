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
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from contenders import Contender, ours, race, transformers_generate
from pairing import benchmark, continued, kept, mistaken
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


def contender(pair: Pair, cell: str) -> Contender:
    """Return what answers for a cell: our loop, or transformers by ``generate`` and ``assisted|PROPOSALS``."""
    name, _, count = cell.partition("|")
    if name in ("generate", "assisted"):
        draft = () if name == "generate" else (pair.drafter.model, int(count))  # type: ignore[attr-defined]
        return Contender(cell, transformers_generate(pair.target.model, pair.tokenizer, *draft))
    return Contender(cell, ours(pair, RULES["lossless"], 0) if name == PLAIN else ours(pair, RULES[name], count))


def measured(pair: Pair, given: Namespace, texts: Sequence[str], answers: Answers, seconds: float) -> Iterator[int]:
    """Add what is missing to the answers, as far as time allows; yield each prompt's number when it is finished."""
    cells = [PLAIN, *given.others, *(f"{rule}|{count}" for rule in given.rules for count in given.proposals)]
    contenders = [contender(pair, cell) for cell in cells]
    began, longest = time.perf_counter(), 0.0
    race(contenders, [WARM_UP])
    for i, text in enumerate(texts):
        started = time.perf_counter()
        if str(i) in answers:
            continue
        if started + longest > began + seconds:
            return
        request = {"text": text, "temperature": 1.0, "max_new_tokens": given.tokens, "seed": i}
        replies = {name: reply for name, (reply,) in race(contenders, [request], first=i).items()}
        for _ in range(REPEATS):
            again = [each for each in contenders if replies[each.name]["others"] > DISTURBED]
            for name, (reply,) in race(again, [request]).items():
                replies[name] = min(replies[name], reply, key=lambda each: each["others"])
        answers[str(i)] = {cell: _counted(replies[cell]) for cell in cells}
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


def measure(given: Namespace) -> Iterator[dict[str, Any]]:
    """Measure what is missing; yields after each prompt."""
    twins = given.models == [Path("twins")]
    if not twins and (len(given.models) != 2 or given.problems is None):
        mistaken("give twins, or two folders and --problems")
    settings = {name: value for name, value in vars(given).items() if name not in ("minutes", "output", "problems")}
    settings["models"] = [model.name for model in given.models]
    answers: Answers = continued(given.output, settings, "answers")
    dtype = getattr(torch, given.dtype)
    if twins:
        pair = twin_pair(*(SHAPES[name] for name in given.shapes), dtype=dtype, device="cpu")
        texts = [problem.prompt for problem in islice(word_problems("test", seed=1), given.prompts)]
    else:
        pair = load_pair(*map(str, given.models), dtype=dtype, device="cpu", kept_prompts=0)
        asked = [json.loads(line)["question"] for line in given.problems.read_text("utf-8").splitlines()]
        texts = [as_chat_prompt(pair.tokenizer, text) for text in asked[: given.prompts]]
    began = time.perf_counter()
    pair.prepare(AutoLength())
    took = round(time.perf_counter() - began, 2)
    about = {"settings": settings, "auto_measured_seconds": kept(given.output, "auto_measured_seconds") or took}
    about["pass_times"] = pair.pass_times(AutoLength())
    for i in measured(pair, given, texts, answers, 60 * given.minutes):
        yield about | {"answers": answers, "summary": summary(answers)}
        print(f"prompt {i + 1} of {len(texts)} at {time.perf_counter() - began:.0f} s", flush=True)
    if answers:
        print(as_table(summary(answers)))
    print(f"{len(texts) - len(answers)} prompts are left for another run")


if __name__ == "__main__":
    benchmark(
        __doc__, "twins", measure,
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
    )  # fmt: skip
