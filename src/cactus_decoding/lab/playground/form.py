"""What the page offers, and how the page's JSON becomes checked requests."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cactus_decoding import zoo
from cactus_decoding.core.checks import check_integer
from cactus_decoding.core.declared import Declared, fields_of, settings_of, switch
from cactus_decoding.core.drafting.registry import DRAFT_LENGTHS, LOOK_UPS, check_keeps_nothing
from cactus_decoding.core.policy.budget import Budget
from cactus_decoding.core.policy.protection import PATTERNS
from cactus_decoding.core.policy.relaxation import RelaxationPolicy
from cactus_decoding.core.request import SETTINGS, Request
from cactus_decoding.core.rules import RULES, Lossless, Rule, parse_rule
from cactus_decoding.core.rules.base import name_of, round_to
from cactus_decoding.core.schemes import VERIFICATIONS
from cactus_decoding.core.types import AcceptanceRule
from cactus_decoding.zoo import RELAXED
from cactus_decoding.zoo.word_problems import EXAMPLES


@dataclass(frozen=True)
class FormLimits:
    """Upper limits that keep one visitor from blocking the server for the others."""

    prompt_characters: int = 8000
    new_tokens: int = 512
    proposals: int = 64  # in a step
    waiting: int = 20  # visitors in the queue
    runs: int = 24  # finished ones that are kept for what-if questions and downloads

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            check_integer(name, value, 1)

    @property
    def body_bytes(self) -> int:
        """Size of a request: a character takes at most 12 bytes in JSON, and everything beside the prompt is small."""
        return 16 * 1024 + 12 * self.prompt_characters


MAX_COMPARED_RULES = 2
_MAX_SEED = 2**32 - 1
"""A browser's numbers are exact up to 2^53."""
_OWN = ("prompt", "rules", "target", "draft", "chat", "system", "after")
"""What the page sends in addition to what `Request.from_dict` takes."""


@dataclass(frozen=True)
class RunRequest:
    """What a visitor asks for: one prompt and seed, under one rule or two.

    The requests differ in the rule, and a rule that spends nothing has no budget and no relaxation policy.
    """

    prompt: str
    requests: tuple[Request, ...]
    target: str | None = None
    draft: str | None = None
    chat: bool = True  # use the target's chat template, if it has one
    system: str | None = None
    after: str | None = None  # the name of the visitor's last run


def read_request(body: Mapping[str, Any], limits: FormLimits, *, models: bool) -> RunRequest:
    """Check what the page sent: the keys in `_OWN`, and what `Request.from_dict` takes.

    The fields of a `Budget` are an object of their own. ``models`` says whether visitors may name models.
    """
    prompt = body.get("prompt")
    if not isinstance(prompt, str) or not prompt.strip():
        raise ValueError("the prompt is empty: write a question or a text to continue")
    system = body.get("system")
    if not isinstance(system, str | None):
        raise TypeError(f"system must be a text, but is {system!r}")
    if (length := len(prompt) + len(system or "")) > limits.prompt_characters:
        raise ValueError(f"the prompt has {length} characters; allowed are {limits.prompt_characters}")
    seed = body.get("seed")
    seed = secrets.randbelow(_MAX_SEED) if seed is None else seed
    check_integer("seed", seed, 0, _MAX_SEED)
    chat = body.get("chat", True)
    if not isinstance(chat, bool):
        raise TypeError(f"chat must be true or false, but is {chat!r}")
    if system is not None and not chat:
        raise ValueError("a system message is part of a chat: leave it out, or ask by the chat template")
    after = body.get("after")
    if not isinstance(after, str | None):
        raise TypeError(f"after must be the name of a run, but is {after!r}")
    target, draft = (_model_name(role, body.get(role), models) for role in ("target", "draft"))
    budget = body.get("budget")
    shared = {name: value for name, value in body.items() if name not in _OWN} | {
        "budget": Budget(**budget) if isinstance(budget, dict) else budget,
        "seed": seed,
    }
    # each rule has a draft length of its own, which may learn from the answer
    requests = tuple(_request(shared | {"rule": rule}, limits, models) for rule in _rules(body.get("rules")))
    return RunRequest(prompt, requests, target, draft, chat, system, after)


def _request(values: dict[str, Any], limits: FormLimits, models: bool) -> Request:
    if not models:
        values = _from_visitor(values)
    if isinstance(values["rule"], Lossless):
        values = values | dict.fromkeys(("budget", *settings_of(Budget)))  # of which it spends nothing
    request = Request.from_dict(values)
    if not models and getattr(request.num_speculative_tokens, "profile", None) is not None:
        raise ValueError("this server does not read files by name, so auto's profile must be left out")
    if isinstance(request.rule, Lossless):
        request = request.replace(policy=RelaxationPolicy())  # nothing to keep away
    check_integer("max_new_tokens", request.max_new_tokens, 1, limits.new_tokens)
    length, tree = request.num_speculative_tokens, request.tree
    # of a tree every token counts, not only those that follow one another
    name, proposals = ("num_speculative_tokens", length.max_draft_tokens) if tree is None else ("tree", tree.max_nodes)
    if proposals > limits.proposals:
        raise ValueError(f"{name} must be at most {limits.proposals} on this server, but is {proposals}")
    return request


def _from_visitor(values: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that a visitor may ask for, who may name no files and no regular expressions."""
    checked = {
        name: each.from_client(values[name], name)
        for name, each in SETTINGS.items()
        if callable(each.setting.from_clients) and name != "rule" and values.get(name) is not None
    }
    return values | checked


def _rules(given: object) -> list[AcceptanceRule]:
    if not isinstance(given, list) or not 1 <= len(given) <= MAX_COMPARED_RULES:
        raise ValueError(f"rules must be a list of one or two spellings, but is {given!r}")
    return [parse_rule(spelling, importing=False) for spelling in given]


def _model_name(role: str, given: object, models: bool) -> str | None:
    if given in (None, ""):
        return None
    if not isinstance(given, str):
        raise TypeError(f"{role} must be a model's name or path, but is {given!r}")
    ours = role == "draft" and (given.strip() in LOOK_UPS or zoo.draft_path(given.strip()) is not None)
    if not models and not ours:
        raise ValueError(f"this server does not load models by name, so {role} must be left empty")
    if role == "draft":
        check_keeps_nothing(given)
    return given.strip()


TREES = ("static=3.2.1", "best_first")
"""Trees that the page suggests; others can be typed."""
FIRST_EXAMPLE = 6
"""With the page's first rule and seed, this example differs from lossless at once, takes fewer steps, and is right."""
_FINEST, _WIDEST = 0.02, 20.0
"""The range of a slider without a studied range, relative to its start."""


def form(
    limits: FormLimits, *, models: bool, rules: Sequence[Rule] = (), proposals: str | None = None
) -> dict[str, Any]:
    """Return everything that the page needs to draw itself, for JSON: the package's rules and those of the server.

    ``proposals`` is the number that the page begins with, by default what suits the bundled pair.
    """
    return {
        "rules": [*(rule(name) for name in RULES), *(_outside(each) for each in rules)],
        "settings": settings(limits, proposals=proposals),
        "start": RELAXED if proposals is None else RELAXED | {"num_speculative_tokens": proposals},
        "compare": proposals is None,  # the bundled pair answers twice at once; on a pair of the user that takes time
        "limits": asdict(limits),
        "models": models,
        "examples": [each._asdict() for each in (*EXAMPLES[FIRST_EXAMPLE:], *EXAMPLES[:FIRST_EXAMPLE])],
    }


_TITLES = {
    "policy": "Protection",
    "sampling": "Sampling",
    "answer": "Sampling",
    "proposals": "Proposals",
    "budget": "Budget",
}
_OTHERS = "More"
_SUGGESTED = {
    "protect": tuple(PATTERNS),
    "num_speculative_tokens": tuple(name for name in DRAFT_LENGTHS if name != "fixed"),
    "tree": TREES,
    "verification": tuple(each.name for each in VERIFICATIONS.values() if not each.lossy),
}


def settings(limits: FormLimits, *, proposals: str | None = None) -> list[dict[str, Any]]:
    """Return the fields of the page's form: every setting of a request except its rule, part by part."""
    start = RELAXED | {"seed": 0, "max_new_tokens": min(256, limits.new_tokens)}
    start |= {} if proposals is None else {"num_speculative_tokens": proposals}
    parts: dict[str, list[dict[str, Any]]] = {title: [] for title in _TITLES.values()}
    for name, each in SETTINGS.items():
        if name != "rule":
            title = next((_TITLES[group] for group in each.groups if group in _TITLES), _OTHERS)
            parts.setdefault(title, []).append(_field(name, each, start.get(name, each.default)))
    return [{"title": title, "fields": fields} for title, fields in parts.items()]


def _field(name: str, declared: Declared, start: object) -> dict[str, Any]:
    """Return a control of the form. It is sent only if the setting that it ``needs`` is given too."""
    metavar, key = declared.setting.metavar, switch(declared.part)
    empty = (declared.required and start is declared.default) or start in (None, ())
    return {
        "name": name,
        "kind": declared.kind.__name__,
        "start": "" if empty else str(start),
        "default": "" if declared.required or declared.default in (None, ()) else str(declared.default),
        "doc": declared.doc,
        "unit": declared.setting.unit,
        "choices": list(declared.choices),
        "suggestions": list(_SUGGESTED.get(name, ())),
        "parts": metavar.split() if " " in metavar else [],
        "several": declared.default == (),
        "needs": key if key != name else "",
    }


def knobs(described: type) -> list[dict[str, Any]]:
    """Return the parameters of a dataclass for JSON, which has no infinity: an infinite default becomes None."""
    return [
        {
            "name": each.name,
            "kind": each.kind.__name__,
            "default": None if each.required or each.default == float("inf") else each.default,
            "required": each.required,
            "doc": each.doc,
            "unit": each.setting.unit,
            "choices": list(each.choices),
        }
        for each in fields_of(described)
    ]


def rule(name: str) -> dict[str, Any]:
    """Return what the page shows of a rule: title, summary, knobs with the ranges of their sliders, and presets.

    A preset is a spelling with its values and its guarantee; the page starts with the first one.
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
    return {
        "name": name,
        "title": described.title,
        "kind": described.kind,
        "summary": described.summary,
        "knobs": shown,
        "presets": presets,
    }


def _outside(given: Rule) -> dict[str, Any]:
    """Return what the page shows of a rule that the server was started with; its knobs begin as given."""
    values = _finite(vars(given))
    preset = {"spelling": str(given), "guarantee": given.summary, "values": values}
    name, described = name_of(type(given)), type(given)
    shown = [knob | {"range": _range_around(knob, values)} for knob in knobs(described)]
    title = described.title or name
    return {
        "name": name,
        "title": title,
        "kind": described.kind,
        "summary": described.summary,
        "knobs": shown,
        "presets": [preset],
    }


def _studied_ranges(described: type[Rule]) -> dict[str, list[float]]:
    """Return, by knob, the range that the study of rules covers; of two ranges the narrower one."""
    ranges: dict[str, list[float]] = {}
    for family in described.families:
        strict, loose = parse_rule(family.spell(family.strict)), parse_rule(family.spell(family.loose))
        for parameter in fields_of(described):
            ends = [getattr(end, parameter.name) for end in (strict, loose)]
            if parameter.kind is not str and None not in ends and ends[0] != ends[1]:
                low, high = sorted(ends)
                ranges[parameter.name] = [low, min(high, ranges.get(parameter.name, [0, high])[1])]
    return ranges


def _range_around(knob: dict[str, Any], values: dict[str, Any]) -> list[float] | None:
    """Return a range for a required knob, around its start."""
    start = values.get(knob["name"])
    if not knob["required"] or knob["kind"] != "float" or not start:
        return None
    return [round_to(start * _FINEST), round_to(start * _WIDEST)]


def _finite(values: dict[str, Any]) -> dict[str, Any]:
    """Replace infinity, which JSON lacks and which is a default, by None."""
    return {name: None if value == float("inf") else value for name, value in values.items()}
