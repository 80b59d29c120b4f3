"""What parameters mean, read from the docstrings that define them: the page keeps no second list."""

from __future__ import annotations

import inspect
import re
from dataclasses import MISSING, Field, fields
from typing import Any

_SECTION = re.compile(r"^(?:Attributes|Args):\n((?:    .*\n?|\n)+)", re.MULTILINE)
_ENTRY = re.compile(r"^    (\w+): ((?:.*\n?)(?:^ {5,}.*\n?)*)", re.MULTILINE)
_WORD = re.compile(r"``([^`]+)``")


def meanings(described: Any) -> dict[str, str]:
    """Return what the docstring of a class or function says of each parameter, in the order it says so.

    Example:
        >>> from cactus_decoding import Ensemble
        >>> meanings(Ensemble)
        {'weight': 'share of the draft, in [0, 1]; 0 is lossless.'}
    """
    sections = _SECTION.findall((inspect.getdoc(described) or "") + "\n")
    return {name: " ".join(text.split()) for part in sections for name, text in _ENTRY.findall(part)}


def title_and_summary(module_docstring: str | None) -> tuple[str, str]:
    """Split the first line of a rule's module into the rule's name and what it does.

    >>> title_and_summary("Cactus: lift the drafted token.")
    ('Cactus', 'Lift the drafted token.')
    >>> title_and_summary("Lossless speculative sampling.")
    ('Lossless speculative sampling', '')
    """
    title, _, summary = (module_docstring or "").strip().partition("\n")[0].partition(": ")
    return title.rstrip("."), summary[:1].upper() + summary[1:]


def knobs(described: type) -> list[dict[str, Any]]:
    """Return the parameters of a dataclass for the page: name, kind, default, meaning, and the choices of words.

    The kind is ``int``, ``float`` or ``str``; a default of None means that the parameter may be left out, and
    ``required`` that it may not. Infinity, which JSON lacks, is left out as a default.

    Example:
        >>> from cactus_decoding import TopK
        >>> [(knob["name"], knob["kind"], knob["choices"]) for knob in knobs(TopK)]
        [('k', 'int', []), ('residual', 'str', ['sample', 'mask'])]
    """
    said = meanings(described)
    return [_knob(field, said.get(field.name, "")) for field in fields(described) if field.init]


def _knob(field: Field[Any], meaning: str) -> dict[str, Any]:
    kind = next(kind for kind in ("str", "int", "float") if kind in str(field.type))
    default = None if field.default is MISSING or field.default == float("inf") else field.default
    return {
        "name": field.name,
        "kind": kind,
        "default": default,
        "required": field.default is MISSING,
        "meaning": meaning,
        "unit": "nats" if re.search(r"\bnats\b", meaning) else "",
        "choices": list(dict.fromkeys(_WORD.findall(meaning))) if kind == "str" else [],
    }
