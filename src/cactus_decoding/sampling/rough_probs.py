"""A row of probabilities that is known up to a small factor, from which most decisions are certain all the same."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

_SMALLEST_NORMAL = 2.0**-126


class RoughProbs(NamedTuple):
    """A row before it is normalised.

    Attributes:
        weights: ``[vocabulary]``, float32, proportional to the probabilities.
        total: about the sum of the weights.

    Example:
        >>> low, high = RoughProbs(torch.tensor([1.0, 3.0]), 4.0).bounds(1)
        >>> low < 0.75 < high
        True
    """

    weights: Tensor
    total: float

    @property
    def slack(self) -> float:
        """By what share the float32 softmax of the row may differ from ``weights / total``.

        A sum of n terms in at least four lanes is off by no more than n / 4 roundings, and exponentials by less than
        1e-4 as long as float32 can hold them.
        """
        return len(self.weights) / 4 * 2**-24 + 1e-4

    def bounds(self, token: int) -> tuple[float, float]:
        """Return a number that a token's probability is no less than, and one that it is no more than."""
        weight = self.weights[token].item()
        if weight < _SMALLEST_NORMAL:  # below it float32 holds fewer and fewer digits
            return 0.0, math.inf
        about = weight / self.total
        return about * (1 - self.slack), about * (1 + self.slack)

    def mass_bounds(self, token_ids: Tensor) -> tuple[float, float]:
        """Return the same for the sum of some tokens' probabilities, ``[tokens]``."""
        about = self.weights.index_select(0, token_ids).sum(dtype=torch.float64).item() / self.total
        # numbers too small for all their digits, among the weights or among the probabilities
        lost = len(token_ids) * _SMALLEST_NORMAL * (1 + 1 / self.total)
        return about * (1 - self.slack) - lost, about * (1 + self.slack) + lost
