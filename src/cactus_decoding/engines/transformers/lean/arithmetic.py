"""The operations of a decoder layer in which ways to round differ, fused or step by step as transformers rounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import rms_norm, scaled_dot_product_attention


class Arithmetic(NamedTuple):
    """How to compute norms, rotations and attention."""

    norm: Callable[[Tensor, Tensor, float], Tensor]
    """Rows ``[..., d]`` to a root mean square of 1, times a weight ``[d]``."""
    rotate: Callable[[Tensor, Tensor, Tensor], Tensor]
    """Pairs (i, i + d/2) of ``[n, heads, d]`` by their position's angles: cosines, and sines with a sign."""
    attend: Callable[[Tensor, Tensor, Tensor, Tensor | None, float], Tensor]
    """Queries ``[n, heads, d]`` to keys and values ``[key heads, m, d]``, with bias and scale: ``[n, heads * d]``."""
    groups: bool
    """Whether the bias has a row for each query head of a key head, ``[heads / key heads * n, m]``, not ``[n, m]``."""


def arithmetic(dtype: torch.dtype, device: torch.device, *, eager: bool) -> Arithmetic:
    """Return what is fastest where float32 or more is computed with, and what rounds as transformers does in 16 bits.

    In 16 bits two ways to round are equally near to the truth, but an answer that is to be that of another program must
    take its way: in bfloat16 each step loses all but 8 binary digits, and what is likeliest often hangs on the last.
    """
    if dtype.itemsize > 2:
        return Arithmetic(_fused_norm, _fused_rotate, _grouped_attention, groups=True)
    if eager:
        return Arithmetic(_norm, _rotate, _eager_attention, groups=True)
    if device.type == "cpu":
        return Arithmetic(_norm, _rotate, _attention, groups=False)
    return Arithmetic(_norm, _rotate, _grouped_attention, groups=True)  # no kernel for groups takes a mask there


def _fused_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    return rms_norm(x, weight.shape, weight, epsilon)


def _norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Round once before the weight and once after it."""
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + epsilon)).to(x.dtype)


def _fused_rotate(x: Tensor, cos: Tensor, signed_sin: Tensor) -> Tensor:
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), signed_sin)


def _rotate(x: Tensor, cos: Tensor, signed_sin: Tensor) -> Tensor:
    """Round each product before their sum."""
    return x * cos + x.roll(x.shape[-1] // 2, -1) * signed_sin


def _grouped_attention(query: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """Attend with query heads that share a key head as further queries of it, so that no key is ever repeated."""
    attended = scaled_dot_product_attention(
        _grouped(query, len(keys)), keys[None], values[None], attn_mask=bias, scale=scale
    )
    return _ungrouped(attended, len(query))


def _attention(query: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """Attend with each query head by itself; the kernel sums in another order where there are more queries."""
    grouped = query.shape[1] > len(keys)
    attended = scaled_dot_product_attention(
        query.transpose(0, 1)[None], keys[None], values[None], attn_mask=bias, scale=scale, enable_gqa=grouped
    )
    return attended[0].transpose(0, 1).reshape(len(query), -1)


def _eager_attention(query: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """Round scores and weights, each."""
    scores = _grouped(query, len(keys)) @ keys[None].transpose(2, 3) * scale
    if bias is not None:
        scores = scores + bias
    return _ungrouped(scores.softmax(-1, dtype=torch.float32).to(query.dtype) @ values[None], len(query))


def _grouped(query: Tensor, heads: int) -> Tensor:
    """Turn ``[n, key heads * group, d]`` into ``[1, key heads, group * n, d]``."""
    n, _, width = query.shape
    return query.view(n, heads, -1, width).permute(1, 2, 0, 3).reshape(1, heads, -1, width)


def _ungrouped(attended: Tensor, n: int) -> Tensor:
    """Turn ``[1, key heads, group * n, d]`` into ``[n, key heads * group * d]``."""
    _, heads, _, width = attended.shape
    return attended.view(heads, -1, n, width).permute(2, 0, 1, 3).reshape(n, -1)
