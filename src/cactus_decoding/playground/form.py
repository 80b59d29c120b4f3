"""What the page offers: derived from the registries of rules, draft lengths and protected tokens, and from examples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from cactus_decoding.arguments.knobs import parameters
from cactus_decoding.drafting.lengths import DRAFT_LENGTHS
from cactus_decoding.playground.limits import Limits
from cactus_decoding.policy.budget import Budget
from cactus_decoding.policy.protection import PATTERNS, Protection
from cactus_decoding.rules import RULES, Rule, parse_rule
from cactus_decoding.rules.family import round_to
from cactus_decoding.rules.names import name_of
from cactus_decoding.sampling.params import SamplingParams
from cactus_decoding.verification.declarations import VERIFICATIONS
from cactus_decoding.zoo.settings import RELAXED
from cactus_decoding.zoo.word_problems import EXAMPLES

TREES = ("static=3.2.1", "best_first", "adaptive")
"""Trees that the page proposes; others can be written."""
FIRST_EXAMPLE = 6
"""Where the rule and the seed that the page starts with part from lossless at once, take fewer steps, and are right."""
_FINEST, _WIDEST = 0.02, 20.0
"""The range of a slider that no study of rules has set, in units of where it starts."""


def form(limits: Limits, *, models: bool, rules: Sequence[Rule] = ()) -> dict[str, Any]:
    """Return everything that the page needs to draw itself, for JSON.

    Args:
        limits: upper limits, which the page states before the server has to refuse.
        models: whether visitors may name models.
        rules: those from outside that they may choose beside the package's.
    """
    return {
        "rules": [*(rule(name) for name in RULES), *(_outside(each) for each in rules)],
        "sampling": knobs(SamplingParams),
        "draft_lengths": list(DRAFT_LENGTHS),
        "trees": TREES,
        "budget": knobs(Budget),
        "protection": knobs(Protection),
        "protected_sets": list(PATTERNS),
        "start": RELAXED,
        "verifications": {each.name: each.summary for each in VERIFICATIONS.values()},
        "limits": asdict(limits),
        "models": models,
        "examples": [each._asdict() for each in (*EXAMPLES[FIRST_EXAMPLE:], *EXAMPLES[:FIRST_EXAMPLE])],
    }


def knobs(described: type) -> list[dict[str, Any]]:
    """Return the parameters of a dataclass: name, kind, default, what each means, and the choices of words.

    The kind is ``int``, ``float`` or ``str``; a default of None means that the parameter may be left out, and
    ``required`` that it may not. Infinity, which JSON lacks, is left out as a default.

    Example:
        >>> [(knob["name"], knob["kind"], knob["choices"]) for knob in knobs(RULES["top_k"])]
        [('k', 'int', []), ('residual', 'str', ['sample', 'mask'])]
    """
    return [
        {
            "name": each.name,
            "kind": each.kind.__name__,
            "default": None if each.required or each.default == float("inf") else each.default,
            "required": each.required,
            "doc": each.knob.doc,
            "unit": each.knob.unit,
            "choices": list(each.choices),
        }
        for each in parameters(described)
    ]


def rule(name: str) -> dict[str, Any]:
    """Return what the page shows of a rule: title, summary, knobs with the ranges of their sliders, and presets.

    A preset is a spelling with its values and its guarantee; the first one is where the page starts.

    Example:
        >>> rule("ensemble")["title"], rule("ensemble")["knobs"][0]["range"]
        ('Static ensemble', [0.001, 1.0])
    """
    described = RULES[name]
    presets: list[dict[str, Any]] = [
        {"spelling": each.spelling, "guarantee": each.guarantee, "values": _finite(vars(parse_rule(each.spelling)))}
        for each in described.presets
    ]
    studied = _studied_ranges(described)
    shown = [
        knob | {"range": studied.get(knob["name"]) or _range_around(knob, presets[0]["values"])}
        for knob in knobs(described)
    ]
    return {"name": name, "title": described.title, "summary": described.summary, "knobs": shown, "presets": presets}


def _outside(given: Rule) -> dict[str, Any]:
    """Return what the page shows of a rule that the server was started with, whose knobs begin as given."""
    values = _finite(vars(given))
    preset = {"spelling": str(given), "guarantee": given.summary, "values": values}
    name, described = name_of(type(given)), type(given)
    shown = [knob | {"range": _range_around(knob, values)} for knob in knobs(described)]
    title = described.title or name
    return {"name": name, "title": title, "summary": described.summary, "knobs": shown, "presets": [preset]}


def _studied_ranges(described: type[Rule]) -> dict[str, list[float]]:
    """Return, by knob, where the study of rules begins and ends; of two ranges the narrower one."""
    ranges: dict[str, list[float]] = {}
    for family in described.families:
        strict, loose = parse_rule(family.spell(family.strict)), parse_rule(family.spell(family.loose))
        for parameter in parameters(described):
            ends = [getattr(end, parameter.name) for end in (strict, loose)]
            if parameter.kind is not str and None not in ends and ends[0] != ends[1]:
                low, high = sorted(ends)
                ranges[parameter.name] = [low, min(high, ranges.get(parameter.name, [0, high])[1])]
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
