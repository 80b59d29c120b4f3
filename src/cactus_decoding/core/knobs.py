"""Knobs: what users set. Each is typed, limited and described once, where its dataclass declares it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from functools import cache
from types import NoneType
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from cactus_decoding.core.values import check_choice, check_integer, check_number, shown


@dataclass(frozen=True)
class Knob:
    """What a field means and which numbers it takes, as its annotation's metadata.

    A knob is ``Annotated[float, Knob("budget", unit="nats", ge=0)]``, or ``Annotated[Literal["a", "b"], Knob(...)]``
    where words are to choose from; with ``| None`` in the type it may be left open.

    Attributes:
        doc: what it means, in a few words.
        unit: of its numbers, such as ``nats``.
        ge: they are at least this.
        gt: they are above this.
        le: they are at most this.
        lt: they are below this.
        flat: its name among the settings of a request; the field's own, if empty.
        metavar: what stands for its value in help; derived from its kind, if empty.
        shown: what help shows of a default that None stands for.
    """

    doc: str = ""
    unit: str = ""
    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None
    flat: str = ""
    metavar: str = ""
    shown: str = "none"


@dataclass(frozen=True)
class Parameter:
    """A field of a dataclass, as users set it.

    Attributes:
        name: of the field.
        kind: ``bool``, ``int``, ``float``, or ``str`` for anything else.
        choices: the words to choose from, if it is a word.
        optional: whether it may be None.
        default: its default, or `dataclasses.MISSING`.
        knob: what its annotation says of it; an empty one if it says nothing.
    """

    name: str
    kind: type[bool | int | float | str]
    choices: tuple[str, ...]
    optional: bool
    default: Any
    knob: Knob

    @property
    def required(self) -> bool:
        """Whether it has no default."""
        return self.default is MISSING

    @property
    def flat(self) -> str:
        """Its name among the settings of a request."""
        return self.knob.flat or self.name

    def check(self, value: object, called: str = "") -> object:
        """Return the value, as Python's own number if it is one; raise TypeError or ValueError if it is not allowed.

        Errors call it as they are told to, or by its name.
        """
        knob, called = self.knob, called or self.name
        if value is None and self.optional:
            return None
        if self.kind is bool and not isinstance(value, bool):
            raise TypeError(f"{called} must be True or False, but is {shown(value)}")
        if self.kind is int:
            return check_integer(called, value, int(knob.ge or 0), None if knob.le is None else int(knob.le))
        if self.kind is float:
            low = next((end for end in (knob.ge, knob.gt) if end is not None), -math.inf)
            high = next((end for end in (knob.le, knob.lt) if end is not None), math.inf)
            return check_number(called, value, low, high, low_open=knob.gt is not None, high_open=knob.lt is not None)
        if self.choices:
            check_choice(called, value, self.choices)
        return value


def parameters(described: type[Any]) -> tuple[Parameter, ...]:
    """Return the parameters of a dataclass, in order.

    Example:
        >>> from cactus_decoding.core.rules import TopK
        >>> [(each.name, each.kind.__name__, each.choices) for each in parameters(TopK)]
        [('k', 'int', ()), ('residual', 'str', ('sample', 'mask'))]
    """
    return _parameters(described)  # type: ignore[arg-type]  # every class is hashable


@cache
def _parameters(described: type[Any]) -> tuple[Parameter, ...]:
    hints = get_type_hints(described, include_extras=True)
    return tuple(_parameter(each.name, hints[each.name], each.default) for each in fields(described) if each.init)


def _parameter(name: str, hint: Any, default: Any) -> Parameter:
    knob = Knob()
    if get_origin(hint) is Annotated:
        hint, *metadata = get_args(hint)
        knob = next((each for each in metadata if isinstance(each, Knob)), knob)
    choices = get_args(hint) if get_origin(hint) is Literal else ()
    # a type of its own, words, or a union
    kinds = {type(choice) for choice in choices} or set(get_args(hint)) or {hint}
    kind: type[bool | int | float | str] = next((one for one in (float, int, bool) if one in kinds), str)
    return Parameter(name, kind, choices, NoneType in kinds, default, knob)


def check_knobs(given: Any) -> None:
    """Raise TypeError or ValueError for the first field of a dataclass that its annotation does not allow.

    Fields hold Python's own numbers afterwards, whatever kind of number they were given.

    Example:
        >>> from cactus_decoding.core.rules import TopK
        >>> TopK(k=0)
        Traceback (most recent call last):
        ValueError: k must be at least 1, but is 0
    """
    for parameter in parameters(type(given)):
        value = getattr(given, parameter.name)
        if (checked := parameter.check(value)) is not value:
            object.__setattr__(given, parameter.name, checked)  # the dataclass may be frozen


Part = TypeVar("Part")


def settings_of(part: type[Any]) -> dict[str, Parameter]:
    """Return what a part of a request declares, by flat names, in order.

    Example:
        >>> from cactus_decoding.core.policy.protection import Protection
        >>> [each.name for each in settings_of(Protection).values()]
        ['pattern', 'threshold']
    """
    return {each.flat: each for each in parameters(part)}


def switch(part: type[Any]) -> str:
    """Return the setting without which there is no such part; nothing for a part that there always is."""
    return next((name for name, each in settings_of(part).items() if each.required), "")


def values_of(part: type[Any], made: Any) -> dict[str, Any]:
    """Return a part's values by flat names, numbers of their kind; where there is no such part, as if nobody set them.

    Example:
        >>> from cactus_decoding.core.policy.protection import Protection
        >>> [*values_of(Protection, Protection("digits")).values()], {*values_of(Protection, None).values()}
        (['digits', 0.01], {None})
    """
    if made is None:
        return {name: False if each.kind is bool else None for name, each in settings_of(part).items()}
    values = {name: (each.kind, getattr(made, each.name)) for name, each in settings_of(part).items()}
    return {
        name: kind(value) if kind is float and value is not None else value for name, (kind, value) in values.items()
    }


def build(part: type[Part], given: Mapping[str, Any]) -> Part | None:
    """Return the part that values ask for, among others; None where its `switch` is given no value.

    Raises `TypeError`, `ValueError` for a value that is not allowed, or one of a part that there is not.

    Example:
        >>> from cactus_decoding.core.policy.protection import Protection
        >>> build(Protection, {"protect": "digits", "top_p": 0.9})
        Protection(pattern='digits', threshold=0.01)
    """
    asked = {each.name: each.check(given[name], name) for name, each in settings_of(part).items() if name in given}
    key = switch(part)
    if not key:
        return part(**asked)
    wanted = given.get(key)
    if wanted is not None and not isinstance(wanted, part):
        return part(**asked)
    for name in settings_of(part).keys() - {key}:
        if given.get(name) not in (None, False):
            field = settings_of(part)[key].name
            what = f"that of a {field} in {key}" if field != key else shown(given[name])
            raise ValueError(f"{name} is {what}, but {key} is {shown(wanted)}")
    return wanted
