"""The text spelling of rules and draft lengths: a name, then ``:`` and comma-separated ``parameter=value`` pairs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, TypeVar

Spelled = TypeVar("Spelled")


def parse(kind: str, text: str, known: Mapping[str, type[Spelled]]) -> Spelled:
    """Return the object that a text spells; ``known`` are the dataclasses it may be of, by name.

    Raises:
        ValueError: for an unknown name or parameter, one that is missing or given twice, or a value out of range.

    Example:
        >>> from cactus_decoding.rules import RULES
        >>> parse("rule", "cactus:delta=0.5", RULES).delta
        0.5
    """
    name, _, rest = text.strip().partition(":")
    if name not in known:
        raise ValueError(f"unknown {kind} {name!r} in {text!r}; known are {', '.join(known)}")
    parameters = [field for field in fields(known[name]) if field.init]  # type: ignore[arg-type]
    # an annotation is its text only where its module postpones annotations
    allowed = {field.name: getattr(field.type, "__name__", str(field.type)) for field in parameters}
    values: dict[str, float | int | str] = {}
    for part in filter(None, (part.strip() for part in rest.split(","))):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or key not in allowed:
            listed = ", ".join(allowed) or "none"
            raise ValueError(f"{part!r} in {text!r} is not parameter=value; parameters of {name} are: {listed}")
        if key in values:
            raise ValueError(f"{key} is given twice in {text!r}")
        values[key] = _convert(key, value, allowed[key], text)
    missing = [f.name for f in parameters if f.name not in values and f.default is MISSING]
    if missing:
        raise ValueError(f"{text!r} lacks {', '.join(missing)}; write for example '{name}:{missing[0]}=1'")
    return known[name](**values)


def _convert(key: str, value: str, kind: str, text: str) -> float | int | str:
    """Turn the text of a parameter into its type."""
    if kind == "str":
        return value
    try:
        return int(value) if kind == "int" else float(value)
    except ValueError:
        expected = "an integer" if kind == "int" else "a number"
        raise ValueError(f"{key} must be {expected}, but is {value!r} in {text!r}") from None


def spell(name: str, spelled: Any) -> str:
    """Return the text that `parse` turns into a dataclass of that name; parameters at their default are left out.

    Example:
        >>> from cactus_decoding.rules import Cactus
        >>> spell("cactus", Cactus(delta=1, solver="exact"))
        'cactus:delta=1.0,solver=exact'
    """
    given = []
    for field in fields(spelled):
        value = getattr(spelled, field.name)
        if field.init and (field.default is MISSING or value != field.default):
            # one spelling for equal objects: 1, 1.0 and NumPy's 1.0 are the same parameter
            given.append(f"{field.name}={float(value)!r}" if "float" in str(field.type) else f"{field.name}={value}")
    return f"{name}:{','.join(given)}" if given else name
