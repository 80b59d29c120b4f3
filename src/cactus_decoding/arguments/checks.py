"""Checks of what users pass in: each error names the argument, what was given, and what is allowed."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from cactus_decoding.arguments.suggestions import suggestion

# float64 rows may come from a float32 softmax over a large vocabulary, which is off by a few millionths
_SUM_TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 5e-2}


def check_number(
    name: str, value: object, low: float, high: float, *, low_open: bool = False, high_open: bool = False
) -> None:
    """Raise unless ``value`` is a finite-or-allowed real number between the bounds.

    Raises:
        TypeError: if it is no number.
        ValueError: if it is NaN or out of range.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number, but is {value!r}")
    below = value <= low if low_open else value < low
    above = value >= high if high_open else value > high
    if math.isnan(value) or below or above:
        interval = f"{'(' if low_open else '['}{low:g}, {high:g}{')' if high_open else ']'}"
        raise ValueError(f"{name} must be in {interval}, but is {value!r}")


def check_integer(name: str, value: object, low: int, high: int | None = None) -> None:
    """Raise unless ``value`` is an integer of at least ``low`` (and at most ``high``)."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an integer, but is {value!r}")
    if value < low or (high is not None and value > high):
        allowed = f"at least {low}" if high is None else f"between {low} and {high}"
        raise ValueError(f"{name} must be {allowed}, but is {value}")


def check_choice(name: str, value: object, allowed: tuple[str, ...]) -> None:
    """Raise unless ``value`` is one of the allowed words."""
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}, but is {value!r}{suggestion(value, allowed)}")


def check_probabilities(name: str, probs: object) -> None:
    """Raise unless ``probs`` is a float tensor whose last dimension holds distributions.

    Raises:
        TypeError: if it is no floating-point tensor.
        ValueError: for an empty vocabulary, NaN, a negative entry, or a row that does not sum to 1.
    """
    if not isinstance(probs, Tensor) or not probs.dtype.is_floating_point:
        given = f"a tensor of {probs.dtype}" if isinstance(probs, Tensor) else repr(type(probs).__name__)
        raise TypeError(f"{name} must be a floating-point tensor of probabilities, but is {given}")
    if probs.ndim == 0 or probs.shape[-1] == 0:
        raise ValueError(f"{name} must have a vocabulary as its last dimension, but its shape is {list(probs.shape)}")
    least = probs.amin() if probs.numel() else probs.new_zeros(())  # NaN where there is one: a single pass finds both
    if least.isnan():
        raise ValueError(f"{name} must not contain NaN; allowed are probabilities in [0, 1]")
    if least < 0:
        raise ValueError(f"{name} must be in [0, 1], but its smallest entry is {least.item():g}")
    sums = probs.sum(-1, dtype=torch.float64)
    wrong = (sums - 1).abs()
    tolerance = _SUM_TOLERANCE.get(probs.dtype, 5e-2)
    if wrong.numel() and wrong.max() > tolerance:
        worst = sums.flatten()[wrong.flatten().argmax()].item()
        raise ValueError(f"every row of {name} must sum to 1 (within {tolerance:g}), but one sums to {worst:.9g}")


def check_token_ids(name: str, token_ids: object, vocabulary: int) -> None:
    """Raise unless ``token_ids`` is an integer tensor with entries in ``[0, vocabulary)``."""
    if not isinstance(token_ids, Tensor) or token_ids.dtype.is_floating_point or token_ids.dtype == torch.bool:
        given = f"a tensor of {token_ids.dtype}" if isinstance(token_ids, Tensor) else repr(type(token_ids).__name__)
        raise TypeError(f"{name} must be an integer tensor, but is {given}")
    if token_ids.numel() and not (int(token_ids.min()) >= 0 and int(token_ids.max()) < vocabulary):
        given = f"{int(token_ids.min())} to {int(token_ids.max())}"
        raise ValueError(f"{name} must be in [0, {vocabulary}), but ranges over {given}")
