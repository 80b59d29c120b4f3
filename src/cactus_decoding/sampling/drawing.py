"""From weights and a uniform number to a token."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

_BLOCK, _FEW_BLOCKS = 256, 16
"""Weights that are added up at once, and rows so short that their running sum is as fast."""


def draw(weights: Tensor, uniforms: Tensor) -> Tensor:
    """Return the token that each uniform number picks from unnormalised weights, by inverting their running sum.

    A token of weight zero is never returned. The law is exact up to rounding of the running sum in float64.

    Args:
        weights: not negative, at least one positive in each row, ``[..., vocabulary]``.
        uniforms: in [0, 1), ``[...]``.

    Example:
        >>> draw(torch.tensor([0.0, 3.0, 1.0]), torch.tensor(0.74)).item()
        1
    """
    sums = weights.double().cumsum(-1).contiguous()
    total = sums[..., -1:].contiguous()
    points = (uniforms.double().unsqueeze(-1) * total).contiguous()
    picked = torch.searchsorted(sums, points, right=True)
    last_positive = torch.searchsorted(sums, total)  # where rounding takes u * total up to the total itself
    return torch.minimum(picked, last_positive).squeeze(-1)


def draw_one(weights: Tensor, uniform: Tensor) -> int:
    """Do what `draw` does for one row on the CPU, but sum up most of it in blocks.

    The running sums of blocks are rounded otherwise than one running sum. Where the point that is sought is so close to
    the end of a token's stretch that this might matter, `draw` itself is asked.

    Args:
        weights: ``[vocabulary]``.
        uniform: in [0, 1), a scalar.

    Example:
        >>> draw_one(torch.tensor([0.0, 3.0, 1.0]), torch.tensor(0.74))
        1
    """
    blocks = len(weights) // _BLOCK
    if blocks < _FEW_BLOCKS or not weights.is_contiguous():
        return int(draw(weights, uniform))
    sums = weights[: blocks * _BLOCK].view(blocks, _BLOCK).sum(1, dtype=torch.float64).numpy()
    rest = weights[blocks * _BLOCK :].sum(dtype=torch.float64).item()
    ends = np.append(sums, rest).cumsum()
    total = ends[-1].item()
    point = uniform.item() * total
    block = int(ends.searchsorted(point, side="right"))
    begin = block * _BLOCK
    before = ends[block - 1].item() if block else 0.0
    within = before + weights[begin : begin + _BLOCK].double().cumsum(-1).numpy()
    place = int(within.searchsorted(point, side="right"))
    margin = 4 * len(weights) * 2**-53 * total
    if place < len(within) and math.isfinite(total):
        start = within[place - 1] if place else before
        at_an_end = begin + place == 0  # nothing comes before the first token
        if within[place] - point > margin and (at_an_end or point - start > margin):
            return begin + place
    return int(draw(weights, uniform))


def check_drawn(role: str, token_id: int, probs: Tensor, length: int) -> None:
    """Raise `ValueError` where `draw` found NaN instead of weights: it then returns a token that does not exist."""
    if token_id >= probs.shape[-1]:
        raise ValueError(f"the {role}'s logits after {length} tokens give no probabilities (NaN or infinite)")
