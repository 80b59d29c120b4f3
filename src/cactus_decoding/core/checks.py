"""Checks of what users pass in: each error says in one sentence what was given, and what is allowed."""

from __future__ import annotations

import math
from collections.abc import Iterable
from difflib import get_close_matches
from numbers import Integral, Real
from typing import TYPE_CHECKING

from cactus_decoding.core.gone import replacement

if TYPE_CHECKING:
    import torch
    from torch import Tensor


_CLOSE = 0.65


def suggestion(given: object, known: Iterable[str], *, cutoff: float = _CLOSE) -> str:
    """Return ``; did you mean 'cactus'?`` for a name that is close to a known one or begins one, else nothing.

    For a name that is gone it returns what to use in its place (`core/gone.py`). ``cutoff`` is how similar they must
    be, up to 1 for equal names: more where the name may belong to somebody else.

    Example:
        >>> suggestion("cactos", ["lossless", "cactus"]), suggestion("magic", ["lossless", "cactus"])
        ("; did you mean 'cactus'?", '')
        >>> suggestion("gen", ["frontier", "generate"])
        "; did you mean 'generate'?"
    """
    name = str(given).strip().lower()
    if gone := replacement(name, shared=cutoff > _CLOSE):
        return gone
    folded = {name.lower(): name for name in known}
    close = get_close_matches(name, folded, n=1, cutoff=cutoff)
    if not close and len(name) >= _BEGINNING:
        close = [each for each in folded if each.startswith(name)][:1]
    return f"; did you mean {folded[close[0]]!r}?" if close else ""


def check_key(name: str, key: str) -> None:
    """Raise `ValueError` for a server's key that no HTTP header holds as it is; the message does not show it."""
    if not (key.isascii() and key.isprintable() and key == key.strip()):
        raise ValueError(
            f"{name} must be printable ASCII characters without space around them, as headers hold no others"
        )


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


_FLOATS = ("torch.float16", "torch.bfloat16", "torch.float32", "torch.float64")
_INTEGERS = ("torch.uint8", "torch.int8", "torch.int16", "torch.int32", "torch.int64")
_WIDENED = 2.0**-8
"""Twice what a sum may differ from 1 if its entries were rounded to bfloat16 before they were widened."""


def check_floats(name: str, values: object, what: str = "values") -> Tensor:
    """Return a detached floating-point tensor whose last dimension is a vocabulary of at least one token."""
    given = _ordinary(name, values, _FLOATS, f"a floating-point tensor of {what}")
    if given.ndim == 0 or given.shape[-1] == 0:
        raise ValueError(
            f"{name} must be [..., vocabulary] with at least one token, but its shape is {list(given.shape)}"
        )
    return given.detach()


def check_probabilities(name: str, probs: object) -> Tensor:
    """Return a detached float tensor whose last dimension holds probabilities that sum to 1."""
    import torch

    rows = check_floats(name, probs, "probabilities")
    least = rows.amin() if rows.numel() else rows.new_zeros(())  # NaN where there is one: a single pass finds both
    if least.isnan():
        raise ValueError(f"{name} must not contain NaN; allowed are probabilities in [0, 1]")
    if least < 0:
        raise ValueError(f"{name} must be in [0, 1], but its smallest entry is {least.item():g}")
    sums = rows.sum(-1, dtype=torch.float64)
    wrong = (sums - 1).abs()
    tolerance = sum_tolerance(rows.dtype, rows.shape[-1])
    if wrong.numel() and not wrong.max() <= tolerance:
        worst = sums.flatten()[wrong.flatten().argmax()].item()
        raise ValueError(f"every row of {name} must sum to 1 (within {tolerance:.2g}), but one sums to {worst:.9g}")
    return rows


def sum_tolerance(dtype: torch.dtype, vocabulary: int) -> float:
    """Return how far from 1 the sum of an honest row may be: of a softmax in float32, kept in some precision.

    With u = 2^-24, adding up n positive numbers one by one in float32 is off by a part n u at most (Higham, *Accuracy
    and Stability of Numerical Algorithms*, section 4.2), and their exponentials and quotients by another 8 u. Rounding
    each entry, or its logarithm, to a precision of v adds :math:`v (1 + H)`, where the entropy H is at most log n; what
    falls below the least positive number of the precision adds half of it each. Any row may have been widened from 16
    bits, whose rounding may be one-sided, so the tolerance is never below :math:`2^{-8}`.
    """
    import torch

    unit, kept = 2.0**-24, torch.finfo(dtype)
    rounding = max(kept.eps / 2, unit) * (1 + math.log(vocabulary))
    explained = unit * (vocabulary + 8) + rounding + vocabulary * kept.smallest_normal * kept.eps / 2
    return max(explained, _WIDENED)


def check_token_ids(name: str, token_ids: object, vocabulary: int) -> Tensor:
    ids = check_integers(name, token_ids)
    if ids.numel() and not (int(ids.min()) >= 0 and int(ids.max()) < vocabulary):
        given = f"{int(ids.min())} to {int(ids.max())}"
        raise ValueError(f"{name} must be in [0, {vocabulary}), but ranges over {given}")
    return ids


def check_integers(name: str, values: object) -> Tensor:
    return _ordinary(name, values, _INTEGERS, "an integer tensor")


def _ordinary(name: str, values: object, dtypes: tuple[str, ...], wanted: str) -> Tensor:
    import torch

    if not isinstance(values, torch.Tensor) or str(values.dtype) not in dtypes:
        kind = f"a tensor of {values.dtype}" if isinstance(values, torch.Tensor) else repr(type(values).__name__)
        raise TypeError(f"{name} must be {wanted}, but is {kind}")
    if values.is_meta or values.layout != torch.strided:
        place = "on the meta device" if values.is_meta else f"in the layout {values.layout}"
        raise ValueError(f"{name} must be an ordinary tensor that holds values, but is {place}")
    return values


def check_device(name: str, value: Tensor | None, device: torch.device) -> None:
    if value is not None and value.device != device:
        raise ValueError(f"{name} must be on {device} as the target's rows are, but is on {value.device}")


def check_generator(generator: object, device: torch.device) -> None:
    import torch

    if generator is None:
        return
    if not isinstance(generator, torch.Generator):
        raise TypeError(f"generator must be a torch.Generator or None, but is {short_repr(generator)}")
    if generator.device.type != device.type:
        raise ValueError(f"generator must be of {device} as the target's rows are, but is of {generator.device}")
