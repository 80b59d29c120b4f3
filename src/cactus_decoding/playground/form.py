"""What the page offers: derived from the registries of rules and draft lengths, and from the word problems."""

from __future__ import annotations

import sys
from dataclasses import asdict
from itertools import islice
from typing import Any

from cactus_decoding.budgets.budget import Budget
from cactus_decoding.drafting.lengths import DRAFT_LENGTHS
from cactus_decoding.evaluation.frontier.families import FAMILIES, round_to
from cactus_decoding.generation.generate import generate
from cactus_decoding.playground.limits import Limits
from cactus_decoding.playground.meanings import knobs, meanings, title_and_summary
from cactus_decoding.rules import RULES, parse_rule
from cactus_decoding.rules.guarantees import GUARANTEES
from cactus_decoding.sampling.params import SamplingParams
from cactus_decoding.verification.verifiers import VERIFICATIONS
from cactus_decoding.zoo.word_problems import word_problems

NUM_EXAMPLES = 12
_FINEST, _WIDEST = 0.02, 20.0
"""The range of a slider that no study of rules has set, in units of where it starts."""


def form(limits: Limits, *, models: bool) -> dict[str, Any]:
    """Return everything that the page needs to draw itself, for JSON.

    Args:
        limits: upper limits, which the page states before the server has to refuse.
        models: whether visitors may name models.
    """
    return {
        "rules": [rule(name) for name in RULES],
        "sampling": knobs(SamplingParams),
        "draft_lengths": {name: knobs(each) for name, each in DRAFT_LENGTHS.items()},
        "budget": knobs(Budget),
        "verifications": VERIFICATIONS,
        "meanings": meanings(generate),
        "limits": asdict(limits),
        "models": models,
        "examples": [
            {"question": problem.question, "answer": problem.answer}
            for problem in islice(word_problems("test", seed=0), NUM_EXAMPLES)
        ],
    }


def rule(name: str) -> dict[str, Any]:
    """Return what the page shows of a rule: title, summary, knobs with the ranges of their sliders, and presets.

    A preset is a spelling with its values and its guarantee; the first one is where the page starts.

    Example:
        >>> rule("ensemble")["title"], rule("ensemble")["knobs"][0]["range"]
        ('Static ensemble', [0.001, 1.0])
    """
    title, summary = title_and_summary(sys.modules[RULES[name].__module__].__doc__)
    presets: list[dict[str, Any]] = [
        {"spelling": spelling, "guarantee": guarantee, "values": _finite(asdict(parse_rule(spelling)))}  # type: ignore[call-overload]
        for spelling, guarantee in GUARANTEES.items()
        if parse_rule(spelling).name == name
    ]
    studied = _studied_ranges()
    described = [
        knob | {"range": studied.get((name, knob["name"])) or _range_around(knob, presets[0]["values"])}
        for knob in knobs(RULES[name])
    ]
    return {"name": name, "title": title, "summary": summary, "knobs": described, "presets": presets}


def _studied_ranges() -> dict[tuple[str, str], list[float]]:
    """Return, by rule and knob, where the study of rules begins and ends; of two ranges the narrower one."""
    ranges: dict[tuple[str, str], list[float]] = {}
    for family in FAMILIES.values():
        strict, loose = parse_rule(family.spell(family.strict)), parse_rule(family.spell(family.loose))
        for knob in knobs(type(strict)):
            ends = [getattr(end, knob["name"]) for end in (strict, loose)]
            if knob["kind"] != "str" and None not in ends and ends[0] != ends[1]:
                key, (low, high) = (strict.name, knob["name"]), sorted(ends)
                ranges[key] = [low, min(high, ranges.get(key, [0, high])[1])]
    return ranges


def _range_around(knob: dict[str, Any], values: dict[str, Any]) -> list[float] | None:
    """Return a range for a knob that must be given, around where it starts."""
    start = values.get(knob["name"])
    if not knob["required"] or knob["kind"] != "float" or not start:
        return None
    return [round_to(start * _FINEST), round_to(start * _WIDEST)]


def _finite(values: dict[str, Any]) -> dict[str, Any]:
    """Leave out infinity, which JSON lacks and which is a default."""
    return {name: None if value == float("inf") else value for name, value in values.items()}
