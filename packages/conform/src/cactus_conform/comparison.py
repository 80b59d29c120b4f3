"""Whether two servers' texts, with speculation on and off, have the same distribution, which nobody knows."""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from cactus_conform.engine import check_drawn

_PRUDENCE = 5.0
_NEAR_TIE = 0.05  # nats: in half precision, other kernels and batch sizes choose another token below it
FEATURES: dict[str, Callable[[str], object]] = {
    "their first character": lambda text: text[:1],
    "their first 3 characters": lambda text: text[:3],
    "their first 8 characters": lambda text: text[:8],
    "their last 3 characters": lambda text: text[-3:],
    "their lengths": len,
}
"""What texts are compared by."""


class TextServer(Protocol):
    name: str

    def text(self, prompt: str, *, temperature: float, max_tokens: int, seed: int) -> str:
        """Return a completion."""

    def top_logprobs(self, prompt: str) -> dict[str, float] | None:
        """Return log-probabilities of the likeliest next tokens; None where a server does not report them."""


class Betting:
    r"""An e-process against the hypothesis that two samples have the same distribution.

    Of a pair of outcomes (a, b) that came from the first and the second sample, either order is as likely under the
    hypothesis. So with f and g that are estimated from earlier pairs,
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
    right: bool  # whether nothing says that their distributions differ
    pairs: int  # of texts
    log_e: float  # evidence that they differ
    feature: str  # the one with most evidence
    greedy: tuple[int, int, int]  # prompts; those with different texts at temperature 0; those that near-ties explain
    # in the shares of texts up to a length, or before a text in the alphabet; larger differences are impossible
    excluded: float | None


def largest_difference(first: Sequence[Any], second: Sequence[Any], alpha: float) -> float:
    r"""Return the largest difference of two distribution functions that samples of n draws each leave possible.

    Each is within :math:`\sqrt{\log(4/\alpha) / 2n}` of its sample's, with probability 1 - alpha.

    Source: Massart (1990), the constant of Dvoretzky, Kiefer and Wolfowitz's inequality.
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
    """Compare what two servers write, until the evidence is enough, or ``samples`` pairs of texts are drawn.

    Equal distributions are called different with probability ``false_alarm`` at most. At temperature 0, texts that part
    where either server's own probabilities are a near-tie are told apart from others. Each pair has a prompt drawn at
    random, so that texts are independent; the servers get different seeds. ``max_tokens`` must leave room for steps of
    speculation.
    """
    check_drawn(samples, false_alarm)
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
    """Whether the likeliest next tokens of a server are near-tied, and begin what both texts go on with."""
    near = [token for token, logprob in row.items() if max(row.values()) - logprob < _NEAR_TIE]
    return len(near) > 1 and all(any(rest.startswith(token) for token in near) for rest in rests if rest)


def said(found: Comparison) -> list[str]:
    prompts, differ, tied = found.greedy
    greedy = f"At temperature 0, {differ} of {prompts} prompts gave other texts; near-ties explain {tied} of them."
    if differ > tied:
        greedy += " The others are no rounding, as far as the servers' own log-probabilities tell."
    texts = (
        f"odds of e^{found.log_e:.0f} that they differ, most of it by {found.feature}"
        if found.excluded is None
        else "one distribution, as far as they tell; excluded: differences above "
        f"{found.excluded:.2f} in how many are at most so long, or come before one in the alphabet"
    )
    return [f"{'right' if found.right else 'WRONG'}  {found.pairs} pairs of texts: {texts}.", greedy]
