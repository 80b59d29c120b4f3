"""Settings: what users set of a request by flat names. Each is a knob of the dataclass that declares it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from cactus_decoding.arguments.knobs import Parameter, parameters
from cactus_decoding.arguments.values import shown

Part = TypeVar("Part")


def settings_of(part: type[Any]) -> dict[str, Parameter]:
    """Return what a part of a request declares, by flat names, in order.

    Example:
        >>> from cactus_decoding.policy.protection import Protection
        >>> [*settings_of(Protection)]
        ['protect', 'protect_threshold']
    """
    return {each.flat: each for each in parameters(part)}


def switch(part: type[Any]) -> str:
    """Return the setting without which there is no such part; nothing for a part that there always is."""
    return next((name for name, each in settings_of(part).items() if each.required), "")


def values_of(part: type[Any], made: Any) -> dict[str, Any]:
    """Return a part's values by flat names, numbers of their kind; where there is no such part, as if nobody set them.

    Example:
        >>> from cactus_decoding.policy.protection import Protection
        >>> values_of(Protection, Protection("digits")), values_of(Protection, None)
        ({'protect': 'digits', 'protect_threshold': 0.01}, {'protect': None, 'protect_threshold': None})
    """
    if made is None:
        return {name: False if each.kind is bool else None for name, each in settings_of(part).items()}
    values = {name: (each.kind, getattr(made, each.name)) for name, each in settings_of(part).items()}
    return {
        name: kind(value) if kind is float and value is not None else value for name, (kind, value) in values.items()
    }


def build(part: type[Part], given: Mapping[str, Any]) -> Part | None:
    """Return the part that values ask for, among others; None where its `switch` is given no value.

    Raises:
        TypeError, ValueError: for a value that is not allowed, or one of a part that there is not.

    Example:
        >>> from cactus_decoding.policy.protection import Protection
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
