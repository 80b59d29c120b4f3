"""How many word problems were answered right, and how sure that makes us."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cactus_decoding.core.metrics import Metrics
from cactus_decoding.lab.evaluation.intervals import proportion
from cactus_decoding.zoo.word_problems import WordProblem, extract_answer

if TYPE_CHECKING:
    from cactus_decoding.core.generate import Response


@dataclass
class Score:
    """Right answers among all, and what they took.

    Example:
        >>> [round(end, 3) for end in Score(right=17, answers=20).interval]
        [0.621, 0.968]
    """

    right: int = 0
    answers: int = 0
    metrics: Metrics = field(default_factory=Metrics)

    def add(self, problem: WordProblem, response: Response) -> None:
        """Count a finished response to a problem."""
        self.right += extract_answer(response.text) == problem.answer
        self.answers += 1
        self.metrics += response.metrics

    @property
    def accuracy(self) -> float:
        """Right answers over answers."""
        return self.right / self.answers if self.answers else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """The exact 95 % interval of the accuracy."""
        if not self.answers:
            return 0.0, 1.0
        _, low, high = proportion(self.right, self.answers)
        return low, high

    @property
    def seconds_per_answer(self) -> float:
        """Mean wall time of an answer."""
        return self.metrics.seconds / self.answers if self.answers else math.nan

    def as_dict(self) -> dict[str, object]:
        """Return counts, ratios and the interval, for JSON."""
        return {
            "right": self.right,
            "answers": self.answers,
            "accuracy": self.accuracy,
            "accuracy_interval": list(self.interval),
            "seconds_per_answer": self.seconds_per_answer,
            "metrics": self.metrics.as_dict(),
        }
