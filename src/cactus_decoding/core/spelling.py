"""The text spelling of rules and draft lengths: a name, then ``:`` and comma-separated ``parameter=value`` pairs."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from cactus_decoding.core.checks import check_integer, short_repr, suggestion
from cactus_decoding.core.declared import Declared, fields_of

Spelled = TypeVar("Spelled")
_importing = ContextVar("importing", default=True)


def may_import() -> bool:
    return _importing.get()


@contextmanager
def importing_nothing() -> Iterator[None]:
    """Within this, and in threads that are begun in it, no spelling imports a module, whoever parses it."""
    before = _importing.set(False)
    try:
        yield
    finally:
        _importing.reset(before)


def parse(kind: str, text: str, known: Mapping[str, type[Spelled]]) -> Spelled:
    name, _, rest = text.strip().partition(":")
    if name not in known:
        close = suggestion(re.split(r"[\s=,]", name, maxsplit=1)[0], known)  # such as "cactus delta=1"
        raise ValueError(
            f"unknown {kind} {short_repr(name)} in {short_repr(text)}; known are {', '.join(known)}{close}"
        )
    return fill(name, known[name], rest, text)


def fill(name: str, described: type[Spelled], rest: str, text: str) -> Spelled:
    """Return a dataclass with the parameters that ``rest`` spells; see `parse`. Errors show ``name`` and ``text``."""
    allowed = {each.name: each for each in fields_of(described)}
    values: dict[str, float | int | str] = {}
    for part in filter(None, (part.strip() for part in rest.split(","))):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or key not in allowed:
            wrong = f"unknown parameter {short_repr(key)} in {short_repr(text)}"
            if not equals:
                wrong = f"{short_repr(part)} in {short_repr(text)} is not parameter=value"
            raise ValueError(
                f"{wrong}; parameters of {name} are: {', '.join(allowed) or 'none'}{suggestion(key, allowed)}"
            )
        if key in values:
            raise ValueError(f"{key} is given twice in {short_repr(text)}")
        values[key] = _convert(allowed[key], value, text)
    missing = [key for key, each in allowed.items() if key not in values and each.required]
    if missing:
        raise ValueError(
            f"{short_repr(text)} lacks {', '.join(missing)}; write for example "
            f"'{name}{_after(name)}{missing[0]}={f'{name}.jsonl' if missing[0] == 'path' else 1}'"
        )
    return described(**values)


def _convert(parameter: Declared, value: str, text: str) -> float | int | str:
    if parameter.choices and value not in parameter.choices:
        raise ValueError(
            f"{parameter.name} must be one of {', '.join(parameter.choices)}, but is {short_repr(value)} in "
            f"{short_repr(text)}{suggestion(value, parameter.choices)}"
        )
    try:
        return {"true": True, "false": False}[value] if parameter.kind is bool else parameter.kind(value)
    except (KeyError, ValueError):
        expected = {int: "an integer", float: "a number", bool: "true or false"}[parameter.kind]
        raise ValueError(
            f"{parameter.name} must be {expected}, but is {short_repr(value)} in {short_repr(text)}"
        ) from None


def spell(name: str, spelled: Any) -> str:
    """Return the text that `parse` turns into a dataclass of that name; parameters at their default are left out."""
    given = []
    for each in fields_of(type(spelled)):
        value = getattr(spelled, each.name)
        if each.required or value != each.default:
            # one spelling for equal objects: 1, 1.0 and NumPy's 1.0 are the same parameter
            spelled_value = repr(float(value)) if each.kind is float else str(value)
            given.append(f"{each.name}={spelled_value.lower() if each.kind is bool else spelled_value}")
    return f"{name}{_after(name)}{','.join(given)}" if given else name


def _after(name: str) -> str:
    """Return what separates a name from its parameters; a path such as ``module:Class`` has its colon already."""
    return "," if ":" in name else ":"


_UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def read_kept_prompts(value: int | str) -> tuple[int, int | None]:
    """Return how many texts stay cached, and how many bytes their copies may take, if these are limited."""
    if not isinstance(value, str):
        return check_integer("kept_prompts", value, 0), None
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(B|KiB|MiB|GiB)?\s*", value)
    if found is None or (found[2] is None and "." in found[1]):
        raise ValueError(f"kept_prompts must be a number of texts or a size such as 2GiB, but is {short_repr(value)}")
    if found[2] is None:
        return int(found[1]), None
    return sys.maxsize, int(float(found[1]) * _UNITS[found[2]])
