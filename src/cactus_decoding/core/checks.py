"""Checks of tensors that users pass in: each error names the argument, what was given, and what is allowed."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from cactus_decoding.core.mistakes import check_choice as check_choice
from cactus_decoding.core.mistakes import check_integer as check_integer
from cactus_decoding.core.mistakes import check_number as check_number
from cactus_decoding.core.mistakes import short_repr as short_repr

_FLOATS = ("torch.float16", "torch.bfloat16", "torch.float32", "torch.float64")
_INTEGERS = ("torch.uint8", "torch.int8", "torch.int16", "torch.int32", "torch.int64")
_WIDENED = 2.0**-8
"""Twice what a sum may differ from 1 if its entries were rounded to bfloat16 before they were widened."""


def check_floats(name: str, values: object, what: str = "values") -> Tensor:
    """Return a detached floating-point tensor whose last dimension is a vocabulary of at least one token."""
    if not isinstance(values, torch.Tensor) or str(values.dtype) not in _FLOATS:
        raise TypeError(f"{name} must be a floating-point tensor of {what}, but is {_kind(values)}")
    _check_has_values(name, values)
    if values.ndim == 0 or values.shape[-1] == 0:
        raise ValueError(
            f"{name} must be [..., vocabulary] with at least one token, but its shape is {list(values.shape)}"
        )
    return values.detach()


def check_probabilities(name: str, probs: object) -> Tensor:
    """Return a detached float tensor whose last dimension holds probabilities that sum to 1."""
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
    if not isinstance(values, torch.Tensor) or str(values.dtype) not in _INTEGERS:
        raise TypeError(f"{name} must be an integer tensor, but is {_kind(values)}")
    _check_has_values(name, values)
    return values


def _check_has_values(name: str, values: Tensor) -> None:
    if values.is_meta or values.layout != torch.strided:
        given = "on the meta device" if values.is_meta else f"in the layout {values.layout}"
        raise ValueError(f"{name} must be an ordinary tensor that holds values, but is {given}")


def check_device(name: str, value: Tensor | None, device: torch.device) -> None:
    if value is not None and value.device != device:
        raise ValueError(f"{name} must be on {device} as the target's rows are, but is on {value.device}")


def check_generator(generator: object, device: torch.device) -> None:
    if generator is None:
        return
    if not isinstance(generator, torch.Generator):
        raise TypeError(f"generator must be a torch.Generator or None, but is {short_repr(generator)}")
    if generator.device.type != device.type:
        raise ValueError(f"generator must be of {device} as the target's rows are, but is of {generator.device}")


def _kind(value: object) -> str:
    return f"a tensor of {value.dtype}" if isinstance(value, torch.Tensor) else repr(type(value).__name__)
