"""What is made of the answers of `vllm_table.py`: figures of each cell, and each rule where it is fastest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from cactus_decoding.lab.evaluation.intervals import Interval, bootstrapped, ratio_of_sums, resampled_sums

NO_DRAFT, LOSSLESS = "no draft", "lossless"
CELL = ("loop", "drafting", "proposals", "rule", "sampling", "at_once")
DISTURBED = 0.1
"""Share of the machine that other processes may have before an answer counts as disturbed."""
Answers = Mapping[str, Mapping[str, Any]]
"""Answers of a cell, by prompt."""


def summaries(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the summary of all answers, and of each task's where there are several."""
    tasks = [*dict.fromkeys(line["prompt"].partition("/")[0] for line in lines)]
    found = {"all": summary(lines)}
    if len(tasks) > 1:
        found |= {task: summary([line for line in lines if line["prompt"].startswith(f"{task}/")]) for task in tasks}
    return found


def summary(lines: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    r"""Return figures with their 95 % intervals over prompts, null where there are too few prompts to tell.

    With n requests at once, tokens per second are those of the whole engine,

    .. math:: n \sum \text{tokens} / \sum \text{seconds},

    because n answers are always under way. A ratio of two cells is over the prompts that both answered. A rule's best
    number of proposals is where it makes the most tokens per second, of the cells that answered as many prompts as any
    of the same load: prompts differ, and a run that was cut short has not asked all of them.
    """
    cells: dict[tuple[Any, ...], dict[str, Mapping[str, Any]]] = {}
    disturbed = 0
    for line in lines:
        cells.setdefault(tuple(line[name] for name in CELL), {})[line["prompt"]] = line
        disturbed += line.get("others", 0.0) > DISTURBED
    figures = {cell: _figures(answers, cell[-1]) for cell, answers in cells.items()}
    best = []
    for group in dict.fromkeys((cell[0], *cell[4:]) for cell in cells):
        own = [cell for cell in cells if (cell[0], *cell[4:]) == group]
        most = max(len(cells[cell]) for cell in own)
        fastest: dict[str, tuple[Any, ...]] = {}
        for cell in own:
            if len(cells[cell]) == most and (
                cell[3] not in fastest or _rate(figures[cell]) > _rate(figures[fastest[cell[3]]])
            ):
                fastest[cell[3]] = cell
        for rule, cell in fastest.items():
            row = dict(zip(CELL, cell, strict=True)) | figures[cell]
            for name, base in (("no_draft", fastest.get(NO_DRAFT)), ("lossless", fastest.get(LOSSLESS))):
                if base is not None and base != cell and rule not in (NO_DRAFT, base[3]):
                    row[f"over_{name}"] = _short(_ratio(cells[cell], cells[base], _SPEED))
                    row[f"time_over_{name}"] = _short(_ratio(cells[cell], cells[base], _TIME))
            best.append(row)
    every = []
    for cell, known in figures.items():
        row = dict(zip(CELL, cell, strict=True)) | known
        base = (cell[0], "", 0, NO_DRAFT, *cell[4:])
        if base in cells and base != cell:
            row["over_no_draft"] = _short(_ratio(cells[cell], cells[base], _SPEED))
        every.append(row)
    prompts = {prompt for answers in cells.values() for prompt in answers}
    return {"prompts": len(prompts), "disturbed_answers": disturbed, "cells": every, "best": best}


def _rate(figures: Mapping[str, Any]) -> float:
    return float(figures["tokens_per_second"][0])


def _figures(answers: Answers, at_once: int) -> dict[str, Any]:
    tokens, seconds, steps, accepted = (_column(answers, name) for name in ("tokens", "seconds", "steps", "accepted"))
    cut, ones = np.array([each["finish"] == "length" for each in answers.values()], float), np.ones(len(answers))
    return {
        "answers": len(answers),
        "tokens_per_second": _short(Interval(*(at_once * each for each in ratio_of_sums(tokens, seconds)))),
        "tokens_per_step": _short(ratio_of_sums(accepted + steps, steps)) if steps.sum() else None,
        "seconds_per_answer": _short(ratio_of_sums(seconds, ones)),
        "tokens_per_answer": _short(ratio_of_sums(tokens, ones)),
        "cut": round(float(cut.mean()), 4),
    }


def _column(answers: Answers, name: str, prompts: Iterable[str] | None = None) -> np.ndarray:
    return np.array([float(answers[each][name]) for each in (answers if prompts is None else prompts)])


def _SPEED(sums: np.ndarray) -> np.ndarray:
    tokens, seconds, base_tokens, base_seconds = sums.T
    return (tokens / seconds) / (base_tokens / base_seconds)


def _TIME(sums: np.ndarray) -> np.ndarray:
    return sums[:, 1] / sums[:, 3]


def _ratio(own: Answers, base: Answers, of: Callable[[np.ndarray], np.ndarray]) -> Interval:
    """Return a ratio of two cells on the prompts of both, paired."""
    common = [prompt for prompt in own if prompt in base]
    if not common:
        return Interval(float("nan"), float("nan"), float("nan"))
    columns = np.stack([_column(each, name, common) for each in (own, base) for name in ("tokens", "seconds")], axis=1)
    value = float(of(columns.sum(0, keepdims=True))[0])
    return bootstrapped(value, of(resampled_sums(columns)), len(common))


def _short(interval: Interval) -> list[float | None]:
    """Return an interval's numbers with four digits."""
    return [None if each != each else float(f"{each:.4g}") for each in interval]


def as_text(found: Mapping[str, Any]) -> str:
    """Return the best of each rule as lines."""
    lines = [f"{'':62} tokens/s  ÷ no draft            ÷ lossless           seconds  tokens   cut"]
    for row in found["best"]:
        way = f"{row['drafting']} {row['proposals']}" if row["proposals"] else ""
        name = f"{row['loop']}, {row['sampling']}, {row['at_once']} at once: {row['rule']} {way}"
        ratios = [_said(row.get(f"over_{base}")) for base in ("no_draft", "lossless")]
        lines.append(
            f"{name:62} {row['tokens_per_second'][0]:8.2f}  {ratios[0]:20} {ratios[1]:20} "
            f"{row['seconds_per_answer'][0]:7.2f} {row['tokens_per_answer'][0]:7.1f}  {row['cut']:4.0%}"
        )
    return "\n".join(lines)


def _said(interval: Sequence[float | None] | None) -> str:
    if interval is None or interval[0] is None:
        return ""
    value, low, high = interval
    return f"{value:.2f}" if low is None else f"{value:.2f} ({low:.2f} to {high:.2f})"
