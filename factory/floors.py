"""What the bundled pairs must be able to do, and how that is measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cactus_decoding.core.generate import generate
from cactus_decoding.core.pair import Pair
from cactus_decoding.lab.evaluation.score import Score
from cactus_decoding.zoo.word_problems import WordProblem
from factory.disagreement import Disagreement

MIN_ACCURACY = 0.90
MIN_GAP = 0.25
ACCEPTANCE_LENGTHS = (2.5, 5.0)
MAX_DIGIT_SHARE = 0.30
GAINS = (0.25, 0.55)
"""Of the worded draft. Its aims are 0.25, and 0.25 to 0.45; the rest is room for three standard deviations."""
MAX_MEGABYTES = 4.0


@dataclass(frozen=True)
class PairScores:
    """How the target alone, the draft alone, and both in lossless speculation did on the same problems."""

    target: Score
    draft: Score
    lossless: Score


@dataclass(frozen=True)
class Floor:
    """A measured value, what is asked of it, and whether it is met."""

    name: str
    value: float
    asked: str
    met: bool


def evaluate_pair(
    pair: Pair,
    draft_alone: Pair,
    problems: Sequence[WordProblem],
    *,
    num_speculative_tokens: int = 6,
    temperature: float = 1.0,
    max_new_tokens: int = 256,
    seed: int = 0,
    report: Callable[[int], None] = lambda done: None,
) -> PairScores:
    """Answer problems with the target alone, the draft alone, and both; problem i with seed + i.

    ``draft_alone`` is a pair whose target is the draft.
    """
    if not problems:
        raise ValueError("problems must not be empty")
    scores = PairScores(Score(), Score(), Score())
    runs = ((scores.target, pair, 0), (scores.draft, draft_alone, 0), (scores.lossless, pair, num_speculative_tokens))
    for i, problem in enumerate(problems):
        for score, models, proposals in runs:
            how = {"temperature": temperature, "max_new_tokens": max_new_tokens, "seed": seed + i}
            score.add(problem, generate(models, problem.prompt, num_speculative_tokens=proposals, **how))
        report(i + 1)
    return scores


def check_floors(scores: PairScores) -> list[Floor]:
    """Compare what was measured with what the bundled pair must reach.

    Example:
        >>> from cactus_decoding import Metrics
        >>> lossless = Score(93, 100, Metrics(steps=100, drafted=600, accepted=280))
        >>> [floor.met for floor in check_floors(PairScores(Score(93, 100), Score(70, 100), lossless))]
        [True, False, True]
    """
    gap = scores.target.accuracy - scores.draft.accuracy
    length, (low, high) = scores.lossless.metrics.acceptance_length, ACCEPTANCE_LENGTHS
    return [
        Floor("target accuracy", scores.target.accuracy, f"≥ {MIN_ACCURACY:g}", scores.target.accuracy >= MIN_ACCURACY),
        Floor("target − draft accuracy", gap, f"≥ {MIN_GAP:g}", gap >= MIN_GAP),
        Floor("acceptance_length, lossless", length, f"{low:g} to {high:g}", low <= length <= high),
    ]


def check_wording(found: Disagreement, weights: Path) -> list[Floor]:
    """Compare a draft that disagrees about wording, and the folder of its weights, with what is asked of it.

    Example:
        >>> from cactus_decoding import Metrics
        >>> plain, relaxed = (Score(93, 100, Metrics(steps=10, accepted=accepted)) for accepted in (90, 120))
        >>> [floor.met for floor in check_wording(Disagreement(plain, 100, 36, plain, relaxed), Path("no weights"))]
        [False, True, True]
    """
    low, high = GAINS
    megabytes = sum(file.stat().st_size for file in weights.glob("*.safetensors")) / 1e6
    return [
        Floor(
            "rejections at digits", found.digit_share, f"≤ {MAX_DIGIT_SHARE:g}", found.digit_share <= MAX_DIGIT_SHARE
        ),
        Floor("accepted per step, gain of Cactus", found.gain, f"{low:g} to {high:g}", low <= found.gain <= high),
        Floor("megabytes of weights", megabytes, f"< {MAX_MEGABYTES:g}", megabytes < MAX_MEGABYTES),
    ]
