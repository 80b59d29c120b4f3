"""Rows of probabilities, dense or sparse, each computed when it is needed; and drawing tokens from them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from cactus_decoding.core.sampling.params import LARGE_VOCABULARY, SamplingParams

_BLOCK, _FEW_BLOCKS = 256, 16  # weights that are added up at once, and rows so short that their running sum is as fast


def draw(weights: Tensor, uniforms: Tensor) -> Tensor:
    """Return the token that each uniform number picks from unnormalised weights, by inverting their running sum.

    Weights are not negative, ``[..., vocabulary]``; uniforms are in [0, 1), ``[...]``. A token of weight zero is never
    returned. The distribution is exact up to rounding of the running sum in float64. If no weight is positive, or one
    is NaN, the size of the vocabulary is returned, which is no token.
    """
    sums = weights.double().cumsum(-1).contiguous()
    total = sums[..., -1:].contiguous()
    points = (uniforms.double().unsqueeze(-1) * total).contiguous()
    picked = torch.searchsorted(sums, points, right=True)
    last_positive = torch.searchsorted(sums, total)  # where rounding takes u * total up to the total itself
    return torch.where(total > 0, torch.minimum(picked, last_positive), picked).squeeze(-1)


def draw_one(weights: Tensor, uniform: Tensor) -> int:
    """Do what `draw` does for one row on the CPU, but sum up most of it in blocks.

    Running sums of blocks are rounded differently. Where the point is so close to a boundary between tokens that this
    might matter, `draw` itself decides.
    """
    blocks = len(weights) // _BLOCK
    if blocks < _FEW_BLOCKS:
        return _draw_short(weights.double().numpy(), uniform.item())
    if not weights.is_contiguous():
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


def _draw_short(weights: np.ndarray, uniform: float) -> int:
    """Do what `draw` does for one row, in float64; NumPy's calls take a third of the time of PyTorch's."""
    sums = weights.cumsum()
    total = sums[-1]
    picked = int(sums.searchsorted(uniform * total, side="right"))
    return min(picked, int(sums.searchsorted(total))) if total > 0 else picked


def check_drawn(role: str, token_id: int, probs: Tensor, length: int) -> None:
    """Raise `ValueError` if `draw` found NaN, or no weights: the token that it returns does not exist."""
    if token_id >= probs.shape[-1]:
        raise ValueError(f"the {role}'s logits after {length} tokens give no probabilities (NaN or infinite)")


def one_hot(token_ids: Sequence[int], like: Tensor) -> Tensor:
    """Return rows in which each token has all the probability, ``[tokens, vocabulary]``, of the kind of other rows."""
    ids = torch.tensor(token_ids, dtype=torch.long, device=like.device)
    return like.new_zeros(len(token_ids), like.shape[-1]).scatter_(1, ids.view(-1, 1), 1.0)


class SparseProbs(NamedTuple):
    """A row of probabilities in its own precision: the whole of it, or the tokens that may have some.

    ``vocabulary`` is how many tokens there are in all. ``probs`` and ``token_ids`` are ``[tokens]``; the ids are
    ascending (but for those that `including` adds), int32 or int64, or None if they are the whole vocabulary.
    """

    vocabulary: int
    probs: Tensor
    token_ids: Tensor | None = None

    @classmethod
    def keep(cls, row: Tensor) -> SparseProbs:
        """Keep a copy of a row, ``[vocabulary]``, on the CPU, in whichever form is smaller."""
        token_ids = row.nonzero().squeeze(1)
        if 2 * len(token_ids) >= len(row):
            return cls(len(row), row.cpu().clone())
        return cls(len(row), row[token_ids].cpu(), token_ids.cpu().int())

    @property
    def nbytes(self) -> int:
        return self.probs.nbytes + (0 if self.token_ids is None else self.token_ids.nbytes)

    def dense(self) -> Tensor:
        if self.token_ids is None:
            return self.probs
        return self.probs.new_zeros(self.vocabulary).index_copy_(0, self.token_ids.long(), self.probs)

    def probability(self, token: int) -> float:
        place = self._place(token)
        return 0.0 if place is None else self.probs[place].item()

    def mass(self, token_ids: Tensor) -> float:
        """Return the sum of the probabilities of some tokens, at least one, ascending int64, in float64."""
        if self.token_ids is None:
            return self.probs.index_select(0, token_ids).sum(dtype=torch.float64).item()
        listed = self.token_ids.long()
        place = torch.searchsorted(token_ids, listed).clamp_(max=len(token_ids) - 1)
        return self.probs[token_ids[place] == listed].sum(dtype=torch.float64).item()

    def including(self, tokens: Sequence[int]) -> tuple[SparseProbs, list[int]]:
        """Return a row that lists some tokens, and their places; what was not listed has probability 0."""
        known = [self._place(token) for token in tokens]
        added = [token for token, place in zip(tokens, known, strict=True) if place is None]
        if not added or self.token_ids is None:
            return self, [place for place in known if place is not None]
        probs = torch.cat([self.probs, self.probs.new_zeros(len(added))])
        new = iter(range(len(self.probs), len(probs)))
        places = [next(new) if place is None else place for place in known]
        return self._replace(probs=probs, token_ids=torch.cat([self.token_ids, torch.tensor(added)])), places

    def restrict(self, row: Tensor) -> Tensor:
        """Return the entries of a row, ``[vocabulary]``, that belong to the listed tokens."""
        return row if self.token_ids is None else row.index_select(0, self.token_ids)

    def draw(self, weights: Tensor, uniform: Tensor) -> int:
        """Draw a listed token in proportion to weights, ``[tokens]``; return the vocabulary's size if they are NaN."""
        place = draw_one(weights, uniform)
        if place >= len(weights):
            return self.vocabulary
        return place if self.token_ids is None else int(self.token_ids[place])

    def _place(self, token: int) -> int | None:
        if self.token_ids is None:
            return token
        place = int(torch.searchsorted(self.token_ids, token))
        return place if place < len(self.token_ids) and int(self.token_ids[place]) == token else None


class LazyRows:
    """What `SamplingParams` makes of logits, ``[rows, vocabulary]`` on the CPU; only of the rows asked for."""

    def __init__(self, logits: Tensor, sampling: SamplingParams) -> None:
        self._logits, self._sampling, self._vocabulary = logits, sampling, logits.shape[-1]
        # short rows are cheapest all at once
        self._probs = sampling(logits) if self._vocabulary < LARGE_VOCABULARY else None
        self._made: tuple[int, SparseProbs] | None = None

    def at(self, row: int) -> SparseProbs:
        if self._made is None or self._made[0] != row:
            self._made = row, self._make(row)
        return self._made[1]

    def _make(self, row: int) -> SparseProbs:
        if self._probs is not None:
            return SparseProbs(self._vocabulary, self._probs[row])
        if self._sampling.truncates:
            token_ids, probs = self._sampling.sparse_row(self._logits[row])
            return SparseProbs(self._vocabulary, probs, token_ids)
        return SparseProbs(self._vocabulary, self._sampling(self._logits[row]))
