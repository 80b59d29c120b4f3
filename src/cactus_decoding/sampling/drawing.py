"""From weights and a uniform number to a token."""

from __future__ import annotations

import torch
from torch import Tensor


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


def check_drawn(role: str, token_id: int, probs: Tensor, length: int) -> None:
    """Raise `ValueError` where `draw` found NaN instead of weights: it then returns a token that does not exist."""
    if token_id >= probs.shape[-1]:
        raise ValueError(f"the {role}'s logits after {length} tokens give no probabilities (NaN or infinite)")
