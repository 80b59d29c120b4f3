"""Options of ``oneOf`` that exclude each other: there it means what ``anyOf`` does, which is easier to follow."""

from __future__ import annotations

import json
from itertools import combinations
from typing import Any
from urllib.parse import unquote

_MAX_OPTIONS, _MAX_NAMES, _MAX_REFERENCES = 32, 32, 8
"""Options of a union, properties of two options, references one after another: what lies beyond is not looked at."""
_TYPES = frozenset(["null", "boolean", "integer", "number", "string", "array", "object"])


def exclude_each_other(options: list[Any], whole: Any) -> bool:
    """Return whether no value fits two of these schemas, as far as that is seen at once.

    It is seen where their types differ, where their constants do, or where that holds for a property that one of them
    requires: the way in which unions of objects are usually told apart.

    Args:
        options: schemas.
        whole: the schema into which their references lead.
    """
    if len(options) > _MAX_OPTIONS:
        return False
    parts = [_resolved(option, whole) for option in options]
    return all(_differ(a, b) or _properties_differ(a, b, whole) for a, b in combinations(parts, 2))


def _differ(some: dict[str, Any], other: dict[str, Any]) -> bool:
    """Return whether no value has the types and is among the constants that both schemas name."""
    mine, theirs = _values(some), _values(other)
    return not _types(some) & _types(other) or (mine is not None and theirs is not None and not mine & theirs)


def _properties_differ(some: dict[str, Any], other: dict[str, Any], whole: Any) -> bool:
    """Return whether no object fits both schemas, because one requires a property that has no value for both."""
    if _types(some) & _types(other) != {"object"}:
        return False
    required = {*_names(some.get("required")), *_names(other.get("required"))}
    mine, theirs = (each.get("properties") for each in (some, other))
    if not isinstance(mine, dict) or not isinstance(theirs, dict):
        return False
    shared = [name for name in mine if name in required and name in theirs]
    return any(_differ(_resolved(mine[n], whole), _resolved(theirs[n], whole)) for n in shared[:_MAX_NAMES])


def _resolved(schema: Any, whole: Any) -> dict[str, Any]:
    """Return the schema that a reference leads to, without what stands beside it: older drafts ignore that."""
    for _ in range(_MAX_REFERENCES):
        if not isinstance(schema, dict) or not isinstance(schema.get("$ref"), str):
            break
        schema = _at(whole, schema["$ref"])
    return schema if isinstance(schema, dict) else {}


def _at(whole: Any, reference: str) -> Any:
    """Return the part of a schema that a reference leads to; None for an anchor, or where there is none."""
    part: Any = whole
    for step in unquote(reference).removeprefix("#").split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(part, list) and step.isdecimal() and int(step) < len(part):
            part = part[int(step)]
        else:
            part = part.get(step) if isinstance(part, dict) else None
    return part if reference == "#" or reference.startswith("#/") else None


def _types(schema: dict[str, Any]) -> frozenset[str]:
    """Return the types that a value may have; integers are numbers too."""
    given = schema.get("type")
    if not isinstance(given, str | list):
        return _TYPES
    named = frozenset(_names([given] if isinstance(given, str) else given))
    return named | {"integer"} if "number" in named else named


def _values(schema: dict[str, Any]) -> frozenset[str] | None:
    """Return the values that a constant or an enumeration names, as text; None where there is neither."""
    given = [schema["const"]] if "const" in schema else schema.get("enum")
    return (
        frozenset(json.dumps(_as_floats(each), sort_keys=True) for each in given) if isinstance(given, list) else None
    )


def _as_floats(value: Any) -> Any:
    """Return a value whose numbers look alike where they are equal: 1, 1.0 and, for 0, -0.0."""
    if isinstance(value, list):
        return [_as_floats(each) for each in value]
    if isinstance(value, dict):
        return {name: _as_floats(each) for name, each in value.items()}
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    try:
        return float(value) + 0.0 if float(value) == value else value
    except OverflowError:
        return value


def _names(given: Any) -> list[str]:
    return [name for name in given if isinstance(name, str)] if isinstance(given, list) else []
