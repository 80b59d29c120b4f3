"""Evidence that an engine's tokens have another distribution; a check may look at it, and stop, at any time."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cactus_conform.causes import CAUSES, PLACES, SHARES
from cactus_conform.processing import Rows
from cactus_conform.truth import Scored

_FEW_DRAWS, _STRENGTHS = 1.0, (20.0, 200.0)
_PRUDENCE = 30.0
_IMPOSSIBLE = 1e-9  # a token of lower probability cannot come
UNNAMED = "no known mistake: "
OTHERS = UNNAMED + "other tokens come than should"
REPEATED = "responses repeat each other (seeds are shared or ignored)"


class Found(NamedTuple):
    log_e: float  # log of the e-value; a right engine's ever exceeds log(1 / a) with probability a at most
    cause: str  # the best-supported one
    place: str


class Evidence:
    r"""An e-process against the distribution of an engine's tokens: a mixture of likelihood ratios.

    Under the hypothesis, the engine's tokens have the distribution q after every prefix. For distributions a that known
    mistakes lead to, and shares s, :math:`\prod_t (s a(x_t) + (1 - s)\,q(x_t)) / q(x_t)` is a martingale of mean 1. So
    are ratios with weights that are learned from earlier tokens (a plug-in), with Dirichlet mixtures in the place of a,
    and the mean of them all. By Ville's inequality, a right engine's mean ever exceeds 1 / alpha with probability at
    most alpha, whenever one looks.

    A token that q excludes is infinite evidence. Positions whose cuts depend on rounding are left out.

    Sources: Ville (1939); Grünwald, de Heide and Koolen (arXiv 1906.07801); Waudby-Smith and Ramdas (arXiv 2010.09686).
    """

    def __init__(self) -> None:
        self.named = np.zeros((len(CAUSES), len(PLACES), len(SHARES)))  # logs of likelihood ratios
        self._learned = {name: _Tilt(of) for name, of in _TILTS.items()}
        self._expected, self._counts = dict[Hashable, Rows](), dict[Hashable, Rows]()
        self._impossible = ""

    def add(self, rows: Scored, contexts: list[Hashable | None]) -> None:
        """Count positions; those with equal contexts have the same distribution (None: no context)."""
        used = rows.clear
        seen = np.take_along_axis(rows.target, rows.tokens[:, None], -1)[:, 0]
        never = used & (seen < _IMPOSSIBLE)
        if never.any():
            first = int(never.argmax())
            self._impossible = f"a token came that the sampling settings exclude, as token {rows.places[first] + 1}"
        safe = np.where(used, np.maximum(seen, _IMPOSSIBLE), 1.0)
        came = [np.take_along_axis(of(rows), rows.tokens[:, None], -1)[:, 0] for of in CAUSES.values()]
        places = np.stack([used & where(rows) for where in PLACES.values()], -1).astype(float)
        for index, share in enumerate(SHARES):
            # where an alternative excludes what came, its logarithm is finite, because 0 times it must be 0
            ratios = np.maximum(share * np.stack(came) / safe + 1 - share, 1e-300)
            self.named[:, :, index] += np.log(ratios) @ places
        for tilt in self._learned.values():
            tilt.add(rows, used)
        for index in np.nonzero(used)[0].tolist():
            if (context := contexts[index]) is not None:
                self._expected.setdefault(context, rows.target[index])
                self._counts.setdefault(context, np.zeros(rows.target.shape[1]))[rows.tokens[index]] += 1

    def found(self) -> Found:
        if self._impossible:
            best = int((named := self.named.max((1, 2))).argmax())
            cause = f"; most evidence for: {[*CAUSES][best]}" if named[best] > 0 else ""
            return Found(math.inf, self._impossible + cause, "")
        each: dict[tuple[str, str], list[float]] = defaultdict(list)
        for index, cause in enumerate(CAUSES):
            for number, place in enumerate(PLACES):
                each[cause, place] += self.named[index, number].tolist()
        for name, tilt in self._learned.items():
            each[UNNAMED + name, "everywhere"].append(tilt.log_e)
        if self._expected:
            first = np.array([isinstance(context, tuple) and len(context) == 1 for context in self._expected])
            expected, counts = (np.stack([*each.values()]) for each in (self._expected, self._counts))
            for strength in (_FEW_DRAWS, *_STRENGTHS):
                logs, name = dirichlet(expected, counts, strength), REPEATED if strength == _FEW_DRAWS else OTHERS
                each[name, "at the first token"].append(float(logs[first].sum()))
                each[name, "at the first three tokens"].append(float(logs.sum()))
        values = [value for several in each.values() for value in several]
        cause, place = max(each, key=lambda key: _mean(each[key]))
        return Found(_mean(values), cause, place)


def together(named: Rows) -> Found:
    """Return what sums of `Evidence.named` over checks say: small mistakes that all of them show."""
    cause, place, _ = np.unravel_index(int(named.argmax()), named.shape)
    return Found(_mean(named.ravel().tolist()), [*CAUSES][int(cause)], [*PLACES][int(place)])


def _mean(logs: list[float]) -> float:
    top = max(logs)
    if top == -math.inf:
        return top
    return top + math.log(sum(math.exp(each - top) for each in logs) / len(logs))


def dirichlet(expected: Rows, counts: Rows, strength: float) -> Rows:
    """Return the log likelihood ratio of Dirichlet mixtures to the distributions that are their means, ``[contexts]``.

    ``expected`` and ``counts`` of draws are ``[contexts, vocabulary]``; the mixture's mean is worth ``strength`` draws.

    Example:
        >>> round(float(dirichlet(np.array([[0.5, 0.5]]), np.array([[1.0, 0.0]]), 2.0)[0]), 9)  # each as likely
        0.0
    """
    kept = expected > 0
    prior = np.where(kept, strength * expected, 1.0)
    n = np.where(kept, counts, 0.0)
    total = n.sum(-1)
    before = math.lgamma(strength) - _log_gamma(strength + total)
    each = _log_gamma(prior + n) - _log_gamma(prior) - n * np.log(np.where(kept, expected, 1.0))
    return np.asarray(before + np.where(kept, each, 0.0).sum(-1))


def _log_gamma(values: Rows) -> Rows:
    return np.asarray(np.frompyfunc(math.lgamma, 1, 1)(values), float)


class _Tilt:
    """Weights that are learned: how often a class of tokens came, over how often it should have."""

    def __init__(self, classes: Callable[[Scored], NDArray[np.int64]]) -> None:
        self._classes, self._seen, self._due, self.log_e = classes, np.zeros(32), np.zeros(32), 0.0

    def add(self, rows: Scored, used: NDArray[np.bool_]) -> None:
        classes = self._classes(rows)
        weights = ((self._seen + _PRUDENCE) / (self._due + _PRUDENCE))[classes]
        tilted = rows.target * weights
        came = np.take_along_axis(weights, rows.tokens[:, None], -1)[:, 0]
        self.log_e += float(np.log(came / tilted.sum(-1))[used].sum())
        np.add.at(self._seen, np.take_along_axis(classes, rows.tokens[:, None], -1)[used, 0], 1)
        np.add.at(self._due, classes[used], rows.target[used])


def _ranks(rows: Rows) -> NDArray[np.int64]:
    return np.argsort(np.argsort(-rows, -1, kind="stable"), -1, kind="stable")


_TILTS: dict[str, Callable[[Scored], NDArray[np.int64]]] = {
    "some tokens come more often than they should": lambda rows: np.broadcast_to(
        np.arange(rows.target.shape[1]), rows.target.shape
    ),
    "tokens come by their rank in the target's row": lambda rows: _ranks(rows.target),
    "tokens come by their rank in the draft's row": lambda rows: _ranks(rows.draft),
    "tokens come by how much the draft likes them more than the target": lambda rows: np.digitize(
        np.log((rows.draft + 1e-6) / (rows.target + 1e-6)), (-3, -2, -1, -0.3, 0.3, 1, 2, 3)
    ),
}


def deviation_not_excluded(expected: Rows, counts: Rows, alpha: float) -> float:
    r"""Return the largest total variation from ``expected`` that draws do not exclude, at any time, at level alpha.

    Distributions b whose own e-process stays below 1 / alpha are those with
    :math:`n\,\mathrm{KL}(c \| b) \le \log(1/\alpha) - \log M - n H(c)`, c the shares of the counts, H their entropy
    and M the mixture's likelihood. For an event A, that bounds b(A) by the binary divergence of c(A) and b(A); the
    largest b(A) - expected(A) of all events is returned. ``expected`` has at most 16 entries.

    Source: Robbins (1970), as confidence sequences; Wasserman, Ramdas and Balakrishnan (arXiv 1912.11436).
    """
    kept = expected > 0
    expected, counts = expected[kept], counts[kept].astype(float)
    n = counts.sum()
    if n == 0:
        return 1.0
    shares = counts / n
    logs = [float(dirichlet(expected[None], counts[None], strength)[0]) for strength in (*_STRENGTHS, 2000.0)]
    log_mixture = _mean(logs) + float((counts * np.log(expected)).sum())
    entropy = -float((shares[shares > 0] * np.log(shares[shares > 0])).sum())
    room = max((math.log(1 / alpha) - log_mixture - n * entropy) / n, 0.0)
    events = (np.arange(1, 2 ** len(expected) - 1)[:, None] >> np.arange(len(expected))) & 1
    seen, due = events @ shares, events @ expected
    slack = math.sqrt(room / 2)  # Pinsker's bound: no event moves further, and most cannot come near the largest
    likely = seen - due + slack >= (seen - due).max(initial=0.0)
    seen, due = seen[likely], due[likely]
    low, high = seen.copy(), np.ones(len(seen))
    for _ in range(30):
        middle = (low + high) / 2
        inside = _binary_divergence(seen, middle) <= room
        low, high = np.where(inside, middle, low), np.where(inside, high, middle)
    return float(np.clip((high - due).max(initial=0.0), 0.0, 1.0))


def _binary_divergence(a: Rows, b: Rows) -> Rows:
    def term(x: Rows, y: Rows) -> Rows:
        return np.where(x > 0, x * np.log(np.maximum(x, 1e-300) / np.maximum(y, 1e-300)), 0.0)

    return np.asarray(term(a, b) + term(1 - a, 1 - b))
