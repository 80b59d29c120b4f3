"""How likely proposals are kept, as running rates by how sure the draft is of them."""

from __future__ import annotations

_BUCKETS = 10
_MEMORY = 0.998
"""The share of its weight that an observation keeps from one of its kind to the next."""
_PRIOR_WEIGHT = 4.0


class Chances:
    """Running rates of acceptance, one for each tenth of the draft's probability.

    They begin with the guess that a token is kept as often as the draft is sure of it.

    Example:
        >>> chances = Chances()
        >>> round(chances.of(0.93), 2)
        0.95
        >>> chances.learn(0.93, kept=False)
        >>> chances.of(0.93) < 0.8
        True
    """

    def __init__(self) -> None:
        self._rates = [((i + 0.5) / _BUCKETS * _PRIOR_WEIGHT, _PRIOR_WEIGHT) for i in range(_BUCKETS)]

    def of(self, probability: float) -> float:
        """Return how likely a token of some probability is kept."""
        kept, seen = self._rates[min(int(_BUCKETS * probability), _BUCKETS - 1)]
        return kept / seen

    def learn(self, probability: float, *, kept: bool) -> None:
        """Hear what became of one."""
        place = min(int(_BUCKETS * probability), _BUCKETS - 1)
        before, seen = self._rates[place]
        self._rates[place] = (_MEMORY * before + kept, _MEMORY * seen + 1)
