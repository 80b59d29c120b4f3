"""What a step of SpecTr-GBV's published code emits (arXiv 2604.25925; ``src/engine.py`` at commit e399f44), enumerated.

Written from that file. Its theorem counts a block x as kept with probability Q(x) (1 - (1 - min(P(x) / Q(x), 1))^K).
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable
from functools import cache

from support.exact_enumeration import Law
from support.tree_enumeration import Models

Text = tuple[int, ...]


def theorem(models: Models, depth: int, drafts: int) -> float:
    """Return the accepted tokens per step that its theorem states."""
    masses = _masses(models)
    blocks = (block for i in range(1, depth + 1) for block in itertools.product(range(models.vocabulary), repeat=i))
    return sum(q * _hit(min(_quotient(p, q), 1), drafts) for p, q in map(masses, blocks))


def published(models: Models, depth: int, drafts: int) -> tuple[Law, float]:
    """Return the distribution of the tokens that a step emits, and the mean number of those that it keeps."""
    masses = _masses(models)

    @cache
    def passes(block: Text) -> float:
        """Return the probability that a block's test passes."""
        p, q = masses(block)
        ratio = min(_quotient(p, q), 1)
        if len(block) == depth:
            return min(_quotient(q * _hit(ratio, drafts), _hit(p, drafts)), 1)
        longer = [masses((*block, x)) for x in range(models.vocabulary)]
        kept = sum(b * _hit(min(_quotient(a, b), 1), drafts) for a, b in longer)
        missing = sum(b for _, b in longer) - kept - q * (1 - _hit(ratio, drafts))
        return min(max(_quotient(missing, _hit(p, drafts) - kept), 0), 1)

    law: Law = defaultdict(float)
    mean = 0.0
    paths = [*itertools.product(range(models.vocabulary), repeat=depth)]
    for drawn in itertools.product(paths, repeat=drafts):
        if chance := math.prod(masses(path)[0] for path in drawn):
            for block, probability in _kept(drawn, passes).items():
                mean += chance * probability * len(block)
                for token, weight in enumerate(_next(models, masses, block, depth, drafts)):
                    law[*block, token] += chance * probability * weight
    return law, mean


def _kept(drawn: tuple[Text, ...], passes: Callable[[Text], float]) -> dict[Text, float]:
    """Return how likely each block is the last whose test passed; a whole draft ends the step."""
    ended: dict[Text, float] = defaultdict(float)
    running: dict[tuple[Text, frozenset[Text]], float] = {((), frozenset()): 1.0}
    for path in drawn:
        later: dict[tuple[Text, frozenset[Text]], float] = defaultdict(float)
        for (kept, failed), chance in running.items():
            states = {(kept, failed): chance}
            for block in (path[:i] for i in range(len(kept) + 1, len(path))):
                tested: dict[tuple[Text, frozenset[Text]], float] = defaultdict(float)
                for (before, known), each in states.items():
                    by = 0.0 if block in known else passes(block)
                    tested[block, known] += each * by
                    tested[before, known | {block}] += each * (1 - by)
                states = tested
            for state, each in states.items():
                ended[path] += each * passes(path)
                later[state] += each * (1 - passes(path))
        running = later
    for (kept, _), chance in running.items():
        ended[kept] += chance
    return ended


def _next(
    models: Models, masses: Callable[[Text], tuple[float, float]], block: Text, depth: int, drafts: int
) -> list[float]:
    target = models(block)[0].tolist()
    if len(block) == depth:
        return target
    longer = (masses((*block, x)) for x in range(models.vocabulary))
    weights = [q * (1 - min(_quotient(p, q), 1) ** drafts) for p, q in longer]  # not (1 - r)^K, as in the tests
    return [weight / sum(weights) for weight in weights] if sum(weights) else target


def _masses(models: Models) -> Callable[[Text], tuple[float, float]]:
    @cache
    def masses(block: Text) -> tuple[float, float]:
        if not block:
            return 1.0, 1.0
        p, q = masses(block[:-1])
        target, draft = models(block[:-1])
        return p * draft[block[-1]].item(), q * target[block[-1]].item()

    return masses


def _hit(chance: float, drafts: int) -> float:
    return 1 - (1 - chance) ** drafts


def _quotient(numerator: float, denominator: float) -> float:
    return numerator / (denominator + 1e-20)
