"""How often proposals are kept, by what is known before they are drawn."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from cactus_decoding.core.drafting.suffix_index import Match


class Rates:
    """Running rates of success, each beginning with a guess that what is seen outweighs.

    An observation keeps a share of its weight (``memory``) when another one of its kind comes; so many as if the guess
    had been ``tried`` are there from the start, and fade like others.

    Example:
        >>> rates = Rates([0.5], weight=2, memory=1.0)
        >>> rates.learn(0, True), rates[0]
        (None, 0.6666666666666666)
    """

    def __init__(self, guesses: Sequence[float], weight: float, memory: float, tried: float = 0.0) -> None:
        self._guesses, self._weight, self._memory = list(guesses), weight, memory
        self._seen, self._kept = [tried] * len(guesses), [tried * guess for guess in guesses]

    def __getitem__(self, kind: int) -> float:
        """Return the rate."""
        guessed = self._guesses[kind] * self._weight
        return (guessed + self._kept[kind]) / (self._weight + self._seen[kind])

    def learn(self, kind: int, kept: bool) -> None:
        """Learn from one observation."""
        self._seen[kind] = self._memory * self._seen[kind] + 1
        self._kept[kind] = self._memory * self._kept[kind] + kept

    def forget(self, share: float) -> None:
        """Let all observations keep a share of their weight: what was seen is true of its text."""
        self._seen = [share * seen for seen in self._seen]
        self._kept = [share * kept for kept in self._kept]


_SUPPORT = (2, 3, 4, 6, 9, 16, 32)
"""From so much on what supports a copied token counts as of the next kind; see `Match`."""
_COPIED = (0.2, 0.35, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)


class CopyChances:
    """How often the text goes on as it did before, by what supports that; see `Match`.

    Every token tells, proposed or not, so a text that begins to repeat itself is noticed at no cost.
    """

    def __init__(self) -> None:
        self._rates = Rates(_COPIED, weight=3, memory=0.97)

    def learn(self, match: Match, token_ids: Sequence[int]) -> None:
        """Learn from the tokens that came where others followed a match."""
        for support, one, other in zip(match.support, match.token_ids, token_ids, strict=False):
            self._rates.learn(bisect_right(_SUPPORT, support), one == other)
            if one != other:
                break

    def tokens(self, match: Match) -> list[float]:
        """Return how many tokens a step is expected to bring with 0, 1, ... of the tokens behind a match."""
        chance, expected = 1.0, [1.0]
        for support in match.support:
            chance *= self._rates[bisect_right(_SUPPORT, support)]
            expected.append(expected[-1] + chance)
        return expected


_BUCKETS = 10
_FADES = 0.985
"""The share of its weight that an observation of the draft keeps with each token that it is not asked for."""


class DraftChances:
    """How often a draft's tokens are kept, by how sure its row was, and overall.

    It begins with a high guess: what has never been tried is tried once, as far as an account of losses allows.
    """

    def __init__(self) -> None:
        guesses = [(i + 0.5) / _BUCKETS for i in range(_BUCKETS - 1)] + [0.98]
        self._by_confidence = Rates(guesses, weight=3, memory=0.98)
        self._overall = Rates([0.95], weight=1, memory=0.92, tried=2)  # texts often begin with a refusal

    @property
    def next(self) -> float:
        """How likely a proposal is kept of whose row nothing is known."""
        return self._overall[0]

    def of(self, confidence: float) -> float:
        """Return how likely a token is kept that was drawn from a row whose likeliest token has this probability."""
        return self._by_confidence[self._kind(confidence)]

    def learn(self, confidences: Sequence[float], num_accepted: int) -> None:
        """Learn from a step; nothing is known of proposals after the first rejection."""
        for i, confidence in enumerate(confidences[: num_accepted + 1]):
            self._by_confidence.learn(self._kind(confidence), i < num_accepted)
            self._overall.learn(0, i < num_accepted)

    def fade(self, num_tokens: int) -> None:
        """Forget a little with each token."""
        self._by_confidence.forget(_FADES**num_tokens)
        self._overall.forget(_FADES**num_tokens)

    @staticmethod
    def _kind(confidence: float) -> int:
        return min(int(_BUCKETS * confidence), _BUCKETS - 1)
