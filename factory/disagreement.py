"""About what a draft and its target disagree, and what relaxing gains from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from cactus_decoding.core.generate import generate, stream
from cactus_decoding.core.pair import Pair
from cactus_decoding.core.policy.protection import Protection, may_relax
from cactus_decoding.core.policy.vocabulary import Vocabulary
from cactus_decoding.lab.evaluation.score import Score
from cactus_decoding.zoo.word_problems import WordProblem

RELAXED = "cactus:delta=1.0"
PAPERS_SAMPLING: dict[str, Any] = {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "num_speculative_tokens": 20}
"""How the Cactus paper's first table samples, and its longer draft length."""


@dataclass(frozen=True)
class Disagreement:
    """What lossless speculation rejected, and what it accepts beside a relaxed rule.

    ``untruncated`` is lossless at temperature 1 with 6 proposals; of its rejections those are ``at_digits`` where the
    target put more than 0.01 on tokens with a digit. The others are in the Cactus paper's sampling with 20 proposals.
    """

    untruncated: Score
    rejections: int
    at_digits: int
    lossless: Score
    relaxed: Score

    @property
    def digit_share(self) -> float:
        """Part of the rejections that are at digits, where relaxing may change the answer."""
        return self.at_digits / self.rejections if self.rejections else 0.0

    @property
    def gain(self) -> float:
        """How many more tokens a step of the relaxed rule accepts: a fraction of what lossless accepts, or 0."""
        relaxed, lossless = (score.metrics.accepted_per_step for score in (self.relaxed, self.lossless))
        return relaxed / lossless - 1 if relaxed and lossless else 0.0

    def as_dict(self) -> dict[str, Any]:
        counts = {name: getattr(self, name) for name in ("rejections", "at_digits", "digit_share", "gain")}
        return counts | {name: getattr(self, name).as_dict() for name in ("untruncated", "lossless", "relaxed")}


def disagreement(
    pair: Pair,
    problems: Sequence[WordProblem],
    *,
    max_new_tokens: int = 256,
    seed: int = 0,
    report: Callable[[int], None] = lambda done: None,
) -> Disagreement:
    """Answer problems losslessly at temperature 1, and losslessly and relaxed in the Cactus paper's sampling.

    Problem i is answered with seed + i.
    """
    if not problems:
        raise ValueError("problems must not be empty")
    protection = Protection("digits")
    vocabulary = Vocabulary.of(pair.tokenizer, pair.target.model.config.vocab_size)
    digits = protection.mask(vocabulary).nonzero().squeeze(1)
    rejections = at_digits = 0
    untruncated, truncated = Score(), {"lossless": Score(), RELAXED: Score()}
    for i, problem in enumerate(problems):
        shared: dict[str, Any] = {"max_new_tokens": max_new_tokens, "seed": seed + i}
        response = stream(pair, problem.prompt, temperature=1.0, num_speculative_tokens=6, **shared)
        for outcome in response:
            # a last step's proposals beyond the end are judged too, but never handed on
            for visit in outcome.visits[: outcome.num_emitted]:
                if not visit.accepted:
                    rejections += 1
                    mass = visit.target_probs[digits].double().sum().item()
                    at_digits += not may_relax(mass, protection.threshold)
        untruncated.add(problem, response)
        for rule, score in truncated.items():
            score.add(problem, generate(pair, problem.prompt, rule=rule, **PAPERS_SAMPLING, **shared))
        report(i + 1)
    return Disagreement(untruncated, rejections, at_digits, truncated["lossless"], truncated[RELAXED])
