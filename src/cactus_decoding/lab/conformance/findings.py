"""What checks find, and what a suite does."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import NormalDist
from typing import NamedTuple

from cactus_decoding.lab.conformance.checks import Check


@dataclass(frozen=True)
class Finding:
    """What a check found.

    Attributes:
        check: which one.
        right: whether nothing speaks against the engine; None where something is worth knowing, and no mistake.
        samples: responses that it took.
        evidence: log of the e-value; infinite for what a right engine never does.
        deviation: total variation of each of the first three tokens' laws, of every prompt and sampling, that is
            excluded from here on; None for checks of something else.
        said: what is wrong, and its likely cause; or what else is excluded.
    """

    check: Check
    right: bool | None
    samples: int
    evidence: float = 0.0
    deviation: float | None = None
    said: str = ""


class Acceptance(NamedTuple):
    """What part of an engine's tokens were accepted proposals.

    Attributes:
        found: of its own answers.
        possible: of those of `Reference` to the same questions, which accepts as much as a lossless test can.
        error: standard error of their difference, of responses as units.
    """

    found: float
    possible: float
    error: float

    def too_little(self, false_alarm: float) -> bool:
        """Return whether less is accepted than could be; an engine that accepts all it can is rarely blamed.

        Example:
            >>> Acceptance(0.263, 0.315, 0.03).too_little(1e-3), Acceptance(0.263, 0.315, 0.01).too_little(1e-3)
            (False, True)
        """
        return self.found < self.possible - NormalDist().inv_cdf(1 - false_alarm) * self.error


@dataclass
class Report:
    """What a suite found; it is true if everything is right.

    Attributes:
        engine: its name.
        false_alarm: probability that a right engine is called wrong, at most.
        findings: of each check.
        seconds: that it took.
        processor_seconds: of this process; servers, and engines that have processes of their own, use others.
        acceptance: of the drafts whose accepted proposals the engine counts.
    """

    engine: str
    false_alarm: float
    findings: list[Finding] = field(default_factory=list)
    seconds: float = 0.0
    processor_seconds: float = 0.0
    acceptance: dict[str, Acceptance] = field(default_factory=dict)

    @property
    def right(self) -> bool:
        """Whether no check found a mistake."""
        return all(each.right is not False for each in self.findings)

    def __bool__(self) -> bool:
        return self.right

    @property
    def samples(self) -> int:
        """All responses."""
        return sum(each.samples for each in self.findings)
