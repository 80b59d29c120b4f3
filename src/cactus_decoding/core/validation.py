"""Turns pydantic's errors into sentences of our own, in one place."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from cactus_decoding.core.checks import check_choice, check_integer, check_number, short_repr, suggestion

_WORDS: dict[type, str] = {bool: "True or False", str: "a text"}
NO_NAMES: Mapping[str, str] = {}


def mistake(
    error: ValidationError,
    fields: Mapping[str, FieldInfo],
    *,
    what: str,
    called: Mapping[str, str] = NO_NAMES,
    words: Mapping[type, str] = _WORDS,
) -> TypeError | ValueError:
    """Return the error that says in one sentence what pydantic found first; its ``param`` is the field's name.

    ``what`` is what the fields belong to, with its article; ``called`` are what the sentence calls fields, if not by
    their names; ``words`` are what it calls types.
    """
    found = error.errors(include_url=False)[0]
    said = _said(found, fields, what, called, words)
    if found["loc"]:
        name = str(found["loc"][0])
        vars(said).setdefault("param", called.get(name, name))
    return said


def _said(
    found: Any, fields: Mapping[str, FieldInfo], what: str, called: Mapping[str, str], words: Mapping[type, str]
) -> TypeError | ValueError:
    raised = found.get("ctx", {}).get("error")
    if isinstance(raised, TypeError | ValueError):  # by a check of our own
        return raised
    name = str(next(iter(found["loc"] or fields)))
    if found["type"] == "extra_forbidden":
        return TypeError(f"{what} has no {name!r}; known are {', '.join(fields)}{suggestion(name, fields)}")
    if found["type"] == "missing":
        return TypeError(f"{what} must have {name}")
    try:
        check_declared(called.get(name, name), found["input"], fields[name], words)
    except (TypeError, ValueError) as said:
        return said
    return ValueError(
        f"{called.get(name, name)} must be {_said_of(fields[name], words)}, but is {short_repr(found['input'])}"
    )


def check_declared(name: str, value: object, field: FieldInfo, words: Mapping[type, str] = _WORDS) -> None:
    kinds, choices = kinds_of(field), choices_of(field)
    if value is None and NoneType in get_args(field.annotation):
        return
    if choices:
        check_choice(name, value, choices)
    elif float in kinds or int in kinds:
        low, low_open = _end(field, Ge, Gt, -math.inf)
        high, high_open = _end(field, Le, Lt, math.inf)
        if float in kinds:
            check_number(name, value, low, high, low_open=low_open, high_open=high_open)
        else:
            check_integer(name, value, low, None if high == math.inf else high)
    elif not any(isinstance(value, kind) for kind in kinds if isinstance(kind, type)):
        raise TypeError(f"{name} must be {_said_of(field, words)}, but is {short_repr(value)}")


def kinds_of(field: FieldInfo) -> set[Any]:
    several = get_origin(field.annotation) in (Union, UnionType)
    kinds = get_args(field.annotation) if several else (field.annotation,)
    return {get_args(kind)[0] if get_origin(kind) is Annotated else kind for kind in kinds} - {NoneType}


def choices_of(field: FieldInfo) -> tuple[str, ...]:
    return next((get_args(kind) for kind in kinds_of(field) if get_origin(kind) is Literal), ())


def _said_of(field: FieldInfo, words: Mapping[type, str]) -> str:
    names = []
    for kind in kinds_of(field):
        kind = get_origin(kind) or kind
        name = getattr(kind, "__name__", str(kind))
        names.append(words.get(kind) or f"{'an' if name[0] in 'AEIOaeio' else 'a'} {name}")
    return " or ".join(sorted(names))


def _end(field: FieldInfo, closed: type[Any], opened: type[Any], missing: float) -> tuple[Any, bool]:
    """Return where a field's range begins or ends, and whether the end is left out."""
    limit = next((each for each in field.metadata if isinstance(each, closed | opened)), None)
    if limit is None:
        return missing, False
    return getattr(limit, type(limit).__name__.lower()), isinstance(limit, opened)
