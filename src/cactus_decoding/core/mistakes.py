"""How mistakes are reported: one sentence with what was given and what is allowed, as a TypeError or ValueError."""

from __future__ import annotations

import math
from collections.abc import Iterable
from difflib import get_close_matches
from numbers import Integral, Real


def suggestion(given: object, known: Iterable[str], *, cutoff: float = 0.65) -> str:
    """Return ``; did you mean 'cactus'?`` for a name that is close to a known one or begins one, else nothing.

    ``cutoff`` is how similar they must be, up to 1 for equal names: more where the name may belong to somebody else.

    Example:
        >>> suggestion("cactos", ["lossless", "cactus"]), suggestion("magic", ["lossless", "cactus"])
        ("; did you mean 'cactus'?", '')
        >>> suggestion("gen", ["frontier", "generate"])
        "; did you mean 'generate'?"
    """
    folded = {name.lower(): name for name in known}
    name = str(given).strip().lower()
    close = get_close_matches(name, folded, n=1, cutoff=cutoff)
    if not close and len(name) >= _BEGINNING:
        close = [each for each in folded if each.startswith(name)][:1]
    return f"; did you mean {folded[close[0]]!r}?" if close else ""


class PromptTooLongError(ValueError):
    """A prompt that a model's context window does not hold."""


_BEGINNING = 3  # letters that are enough to tell which name somebody began
_MAX_SHOWN = 100
MAX_WIDTH = 500.0
"""The largest width of a clamped ratio, in nats: far beyond any ratio that matters, and its exponential is finite."""


def check_number(
    name: str, value: object, low: float, high: float, *, low_open: bool = False, high_open: bool = False
) -> float:
    """Return a number between the bounds as Python's own; NumPy's numbers and fractions are taken too."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, but is {short_repr(value)}")
    try:
        wide = float(value)
    except OverflowError:  # an integer beyond all floats is in no interval of floats
        wide = math.nan
    below = wide <= low if low_open else wide < low
    above = wide >= high if high_open else wide > high
    if math.isnan(wide) or below or above:
        interval = f"{'(' if low_open else '['}{low:g}, {high:g}{')' if high_open else ']'}"
        raise ValueError(f"{name} must be in {interval}, but is {short_repr(value)}")
    return int(value) if isinstance(value, Integral) else wide


def check_integer(name: str, value: object, low: int, high: int | None = None) -> int:
    """Return an integer from ``low`` to ``high`` as Python's own; NumPy's are taken too."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be an integer, but is {short_repr(value)}")
    number = int(value)
    if number < low or (high is not None and number > high):
        allowed = f"at least {low}" if high is None else f"between {low} and {high}"
        raise ValueError(f"{name} must be {allowed}, but is {short_repr(number)}")
    return number


def check_choice(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value not in allowed:
        close = suggestion(value, allowed) if isinstance(value, str) else ""
        raise ValueError(f"{name} must be one of {', '.join(allowed)}, but is {short_repr(value)}{close}")


def short_repr(value: object) -> str:
    """Return the shortened representation by which an error shows what was given."""
    try:
        text = repr(value)
    except ValueError:  # an integer with too many digits to print
        return f"an integer of {int(value).bit_length()} bits"  # type: ignore[call-overload]
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 3]}..."
