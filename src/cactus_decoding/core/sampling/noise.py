"""Noise that the target and its drafts share, so that a seed gives one text, whatever is proposed."""

from __future__ import annotations

from typing import Self

import numpy as np
import torch
from torch import Tensor

from cactus_decoding.core.sampling.rows import SparseProbs

_PLACES = 16
"""How many places' numbers are kept, about as many as a step has."""


class SharedNoise(torch.Generator):
    r"""An arrival time for every token at every place of a text, as a function of the seed alone.

    The times are independent and exponential with rate 1. With :math:`E_{t,i}` the time of token i at place t, the
    token of a row q is the one that arrives first,

    .. math:: \arg\min_i E_{t,i} / q_i = \arg\max_i \left(\log q_i + g_{t,i}\right),

    with Gumbel noise :math:`g = -\log E`. Its distribution is q, and two rows p and q choose the same token with
    probability :math:`\sum_i 1 / \sum_j \max(p_j / p_i, q_j / q_i) \ge (1 - TV) / (1 + TV)`.

    Each uniform number of a time is one output of Philox-4x64-10 with the seed as key and the place as a word of
    its counter, so no number depends on what was drawn before. As a `torch.Generator` it gives other numbers, for
    drafters that know nothing of shared noise.

    Sources: Salmon et al., *Parallel random numbers: as easy as 1, 2, 3* (SC 2011); Daliri et al., *Coupling without
    communication* (arXiv 2408.07978).
    """

    def __new__(cls, seed: int, device: torch.device | str = "cpu") -> Self:
        return super().__new__(cls, device)  # type: ignore[call-arg]  # which the stubs of torch do not know

    def __init__(self, seed: int, device: torch.device | str = "cpu") -> None:
        """Take the seed; ``device`` is where drafters draw that use it as a generator."""
        self.manual_seed(seed)
        self.seed_of_noise = seed
        self._known = dict[int, np.ndarray]()  # the numbers of the last places: draft and target ask for the same

    @classmethod
    def of(cls, generator: torch.Generator | None, device: torch.device) -> SharedNoise:
        """Return a generator that is shared noise already, or else new noise whose seed is drawn from it."""
        if isinstance(generator, cls):
            return generator
        return cls(int(torch.randint(2**63 - 1, (), generator=generator, device=device)), device)

    def uniforms(self, place: int, count: int) -> np.ndarray:
        """Return the uniform numbers of the first tokens at a place, in (0, 1], float64; they are not to be written."""
        numbers = self._known.get(place)
        if numbers is None or len(numbers) < count:
            philox = np.random.Philox(key=[self.seed_of_noise, 0], counter=[0, place, 0, 0])
            numbers = np.random.Generator(philox).random(count)
            numbers += 2.0**-54
            if len(self._known) == _PLACES and place not in self._known:
                del self._known[next(iter(self._known))]
            self._known[place] = numbers
        return numbers[:count]

    def token(self, weights: Tensor, place: int) -> int:
        """Return the token that arrives first, for weights in proportion to a row, ``[vocabulary]``, on any device.

        Where no weight is positive, or one is NaN or infinite, the size of the vocabulary is returned, which is no
        token.
        """
        return self._first(weights.cpu().numpy(), self.uniforms(place, len(weights)))

    def token_of(self, row: SparseProbs, weights: Tensor, place: int) -> int:
        """Do what `token` does for weights of the tokens that a row lists."""
        if row.token_ids is None:
            return self.token(weights, place)
        ids = row.token_ids.numpy()
        index = self._first(weights.numpy(), self.uniforms(place, int(ids.max()) + 1)[ids])
        return int(ids[index]) if index < len(ids) else row.vocabulary

    def tokens(self, weights: Tensor, place: int, count: int) -> list[int]:
        """Return the first ``count`` tokens to arrive, or fewer where fewer have a positive weight."""
        with np.errstate(divide="ignore", invalid="ignore"):
            rates = weights.double().cpu().numpy() / -np.log1p(-self.uniforms(place, len(weights)))
        order = np.argsort(-rates, kind="stable")[:count]
        return [int(token) for token in order if rates[token] > 0]

    @staticmethod
    def _first(weights: np.ndarray, uniforms: np.ndarray) -> int:
        """Return the place of the greatest ``weight / time``; logarithms are taken only of those that may be it."""
        if not len(weights):
            return 0
        bounds = weights / uniforms  # a time, -log(1 - u), is at least u
        best = int(bounds.argmax())  # NaN counts as the greatest
        if not 0 < bounds[best] < np.inf:
            return len(weights)
        with np.errstate(divide="ignore"):
            floor = weights[best] / -np.log1p(-uniforms[best])
            places = np.flatnonzero(bounds >= floor)
            return int(places[(weights[places] / -np.log1p(-uniforms[places])).argmax()])


class SharedNumbers:
    """A step's share of the noise: one token for each place that is visited, in order."""

    def __init__(self, noise: SharedNoise, place: int) -> None:
        self._noise, self._place = noise, place

    def again(self) -> SharedNumbers:
        return SharedNumbers(self._noise, self._place)

    def token(self, weights: Tensor, row: SparseProbs | None = None) -> int:
        place, self._place = self._place, self._place + 1
        return self._noise.token(weights, place) if row is None else self._noise.token_of(row, weights, place)
