"""Laws that tokens are drawn from, worked out no further than they are asked about."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from cactus_decoding.divergences.rows import total


class Law:
    """A distribution over tokens: weights divided by their sum, which is all that a single probability needs.

    Args:
        weights: not negative, ``[vocabulary]`` on the CPU; if all are 0, so are the probabilities.

    Example:
        >>> law = Law(torch.tensor([2.0, 1.0, 1.0]))
        >>> law[0], law.without([0])[1], law.without([0]).probs.tolist()
        (0.5, 0.5, [0.0, 0.5, 0.5])
    """

    def __init__(self, weights: Tensor) -> None:
        self._weights = weights
        self._without: dict[tuple[int, ...], Law] = {}

    @property
    def weights(self) -> Tensor:
        """What the probabilities are proportional to, ``[vocabulary]``."""
        return self._weights

    @cached_property
    def total(self) -> float:
        """What the weights are divided by: NaN or infinite where they are no weights."""
        return total(self.weights).item() or 1.0

    @cached_property
    def probs(self) -> Tensor:
        """The whole row in float64, ``[vocabulary]``."""
        return self.weights.to(torch.float64, copy=True).div_(self.total)

    def __getitem__(self, token_id: int) -> float:
        """Return the probability of a token, the same as in `probs`."""
        return self.weights[token_id].item() / self.total

    def without(self, token_ids: list[int]) -> Law:
        """Return the law of a token that is drawn beside others which are proposed in any case."""
        if not token_ids:
            return self
        key = tuple(token_ids)
        if key not in self._without:
            weights = self.weights.clone()
            weights[token_ids] = 0.0
            self._without[key] = Law(weights)
        return self._without[key]


class OneHotLaw(Law):
    """The law of a token that is proposed in any case.

    Args:
        token_id: the token.
        vocabulary: how many there are in all.

    Example:
        >>> OneHotLaw(1, 3)[1], OneHotLaw(1, 3).probs.tolist()
        (1.0, [0.0, 1.0, 0.0])
    """

    def __init__(self, token_id: int, vocabulary: int) -> None:
        self._token_id, self._vocabulary = token_id, vocabulary
        self._without = {}

    @property
    def weights(self) -> Tensor:
        """The probabilities."""
        return self.probs

    @cached_property
    def probs(self) -> Tensor:
        """The whole row in float64, ``[vocabulary]``."""
        return one_hot(torch.tensor(self._token_id), self._vocabulary).double()

    def __getitem__(self, token_id: int) -> float:
        """Return 1 for the token."""
        return float(token_id == self._token_id)
