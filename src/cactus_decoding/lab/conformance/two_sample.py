"""Two servers of the same model, speculation on and off: whether their texts have one law, though nobody knows it."""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

_PRUDENCE = 5.0
_NEAR_TIE = 0.05
"""Nats: below it, other kernels and batch sizes choose another token in half precision too."""
FEATURES: dict[str, Callable[[str], object]] = {
    "their first character": lambda text: text[:1],
    "their first 3 characters": lambda text: text[:3],
    "their first 8 characters": lambda text: text[:8],
    "their last 3 characters": lambda text: text[-3:],
    "their lengths": len,
}
"""What texts are compared by."""


class TextServer(Protocol):
    """A server that completes texts."""

    name: str

    def text(self, prompt: str, *, temperature: float, max_tokens: int, seed: int) -> str:
        """Return a completion."""

    def top_logprobs(self, prompt: str) -> dict[str, float] | None:
        """Return log-probabilities of the likeliest next tokens; None where a server does not tell."""


class Betting:
    r"""An e-process against the hypothesis that two samples have one law.

    Of a pair of outcomes (a, b) that came from the first and the second sample, either order is as likely if the laws
    are one. So with laws that are guessed from earlier pairs,
    :math:`\prod 2 f(a) g(b) / (f(a) g(b) + f(b) g(a))` has mean 1.

    Source: Shekhar and Ramdas (arXiv 2112.09162).

    Example:
        >>> bet = Betting()
        >>> for _ in range(50):
        ...     bet.add("p", "x", "y")
        >>> bet.log_e > 20
        True
    """

    def __init__(self) -> None:
        self._seen: dict[object, tuple[Counter[object], Counter[object]]] = defaultdict(lambda: (Counter(), Counter()))
        self.log_e = 0.0

    def add(self, context: object, first: object, second: object) -> None:
        """Count a pair of outcomes of the same context."""
        seen = self._seen[context]
        if first != second:
            kept = self._guess(seen, 0, first) * self._guess(seen, 1, second)
            swapped = self._guess(seen, 0, second) * self._guess(seen, 1, first)
            self.log_e += math.log(2 * kept / (kept + swapped))
        for counter, outcome in zip(seen, (first, second), strict=True):
            counter[outcome] += 1

    @staticmethod
    def _guess(seen: tuple[Counter[object], Counter[object]], which: int, outcome: object) -> float:
        both, own = sum(counter[outcome] for counter in seen), seen[which]
        pooled = (both + 1) / (sum(counter.total() for counter in seen) + 2)
        return (own[outcome] + _PRUDENCE * pooled) / (own.total() + _PRUDENCE)


@dataclass(frozen=True)
class Comparison:
    """What two servers' texts say.

    Attributes:
        right: whether nothing says that their laws differ.
        pairs: of texts.
        log_e: evidence that they do.
        feature: that shows it best.
        greedy: prompts, those whose texts at temperature 0 differ, and those of them that near-ties explain.
        excluded: differences above it, in how many texts are at most so long, or come before a text in the alphabet,
            are not possible (see `largest_difference`); None where the laws differ.
    """

    right: bool
    pairs: int
    log_e: float
    feature: str
    greedy: tuple[int, int, int]
    excluded: float | None


def largest_difference(first: Sequence[Any], second: Sequence[Any], alpha: float) -> float:
    r"""Return the largest difference of two distribution functions, of any order of texts, that samples leave possible.

    Each is within :math:`\sqrt{\log(4/\alpha) / 2n}` of its sample's, with probability 1 - alpha.

    Args:
        first: values of n independent draws.
        second: likewise, as many.
        alpha: how often the bound may fail.

    Source: Massart (1990), the constant of Dvoretzky, Kiefer and Wolfowitz's inequality.

    Example:
        >>> round(largest_difference([1, 2] * 200, [1, 2] * 200, 0.001), 2)
        0.2
    """
    ordered = sorted(first), sorted(second)
    apart = max(abs(bisect_right(ordered[0], each) - bisect_right(ordered[1], each)) for each in {*first, *second})
    return min(1.0, apart / len(first) + math.sqrt(2 * math.log(4 / alpha) / len(first)))


def compare(
    first: TextServer,
    second: TextServer,
    prompts: Sequence[str],
    *,
    samples: int = 400,
    false_alarm: float = 1e-3,
    max_tokens: int = 8,
    temperature: float = 1.0,
    seed: int = 0,
) -> Comparison:
    """Compare what two servers write, until it is enough, or all samples are drawn.

    Equal laws are called different with probability ``false_alarm`` at most. At temperature 0, texts that part where
    either server's own rows are a near-tie are told apart from others.

    Args:
        first: with speculation, say.
        second: without.
        prompts: are drawn from, so that texts are independent.
        samples: pairs of texts, at most.
        false_alarm: in (0, 1).
        max_tokens: of a text: steps of speculation must fit.
        temperature: of the texts.
        seed: of the first text; the second server's are others.
    """
    bets = {name: Betting() for name in FEATURES}
    order, pairs, log_e, written = random.Random(seed), 0, 0.0, list[list[str]]()
    while pairs < samples and log_e < math.log(1 / false_alarm):
        prompt = order.choice(prompts)
        texts = [
            server.text(prompt, temperature=temperature, max_tokens=max_tokens, seed=seed + 2 * pairs + index)
            for index, server in enumerate((first, second))
        ]
        for name, of in FEATURES.items():
            bets[name].add(prompt, *(of(text) for text in texts))
        written.append(texts)
        pairs += 1
        log_e = float(np.logaddexp.reduce([bet.log_e for bet in bets.values()]) - math.log(len(bets)))
    feature = max(bets, key=lambda name: bets[name].log_e)
    greedy = _greedy(first, second, list(dict.fromkeys(prompts)), max_tokens)
    right = log_e < math.log(1 / false_alarm) and greedy[1] == greedy[2]
    ordered_by: tuple[Callable[[str], Any], ...] = (str, len)
    bound = max(
        largest_difference([of(texts[0]) for texts in written], [of(texts[1]) for texts in written], false_alarm / 2)
        for of in ordered_by
    )
    excluded = bound if log_e < math.log(1 / false_alarm) else None
    return Comparison(right, pairs, log_e, feature, greedy, excluded)


def _greedy(first: TextServer, second: TextServer, prompts: Sequence[str], max_tokens: int) -> tuple[int, int, int]:
    """Count prompts, those whose likeliest texts differ, and those of them that a near-tie explains."""
    differ = tied = 0
    for prompt in prompts:
        texts = [server.text(prompt, temperature=0.0, max_tokens=max_tokens, seed=0) for server in (first, second)]
        if texts[0] == texts[1]:
            continue
        differ += 1
        common = next((index for index, (x, y) in enumerate(zip(*texts, strict=False)) if x != y), min(map(len, texts)))
        rows = [server.top_logprobs(prompt + texts[0][:common]) for server in (first, second)]
        known = [row for row in rows if row]
        tied += bool(known) and all(_tied(row, [text[common:] for text in texts]) for row in known)
    return len(prompts), differ, tied


def _tied(row: dict[str, float], rests: list[str]) -> bool:
    """Return whether a server's own row, in whichever order, has what both texts go on with near the top."""
    near = [token for token, logprob in row.items() if max(row.values()) - logprob < _NEAR_TIE]
    return len(near) > 1 and all(any(rest.startswith(token) for token in near) for rest in rests if rest)


def said(found: Comparison) -> list[str]:
    """Return a comparison in words."""
    prompts, differ, tied = found.greedy
    greedy = f"At temperature 0, {differ} of {prompts} prompts gave other texts; near-ties explain {tied} of them."
    if differ > tied:
        greedy += " The others are no rounding, as far as the servers' own log-probabilities tell."
    law = (
        f"odds of e^{found.log_e:.0f} that their laws differ, most of it by {found.feature}"
        if found.excluded is None
        else "one law, as far as they tell; excluded: differences above "
        f"{found.excluded:.2f} in how many are at most so long, or come before one in the alphabet"
    )
    return [f"{'right' if found.right else 'WRONG'}  {found.pairs} pairs of texts: {law}.", greedy]
