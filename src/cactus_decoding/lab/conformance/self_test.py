"""Whether the suite catches engines that are wrong, and how soon."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from cactus_decoding.lab.conformance.mutants import MUTANTS
from cactus_decoding.lab.conformance.suite import FALSE_ALARM, SAMPLES, conform
from cactus_decoding.lab.conformance.truth import Truth


class Caught(NamedTuple):
    """What became of a mutant.

    Attributes:
        name: of its class.
        mistake: what it does.
        caught: whether a check said that it is wrong.
        check: the first one, in the suite's order.
        samples: that this check took.
        responses: of the whole suite until then.
        said: the likely cause.
    """

    name: str
    mistake: str
    caught: bool
    check: str = ""
    samples: int = 0
    responses: int = 0
    said: str = ""

    def line(self) -> str:
        """Return it as one line."""
        if not self.caught:
            return f"MISSED {self.name}: {self.mistake}"
        return (
            f"caught {self.name:24} after {self.responses:5} responses, {self.samples:4} of '{self.check}': {self.said}"
        )


def self_test(*, samples: int = SAMPLES, false_alarm: float = FALSE_ALARM) -> Iterator[Caught]:
    """Yield what becomes of each mutant, in the suite that an engine passes through.

    Args:
        samples: see `conform`.
        false_alarm: see `conform`.
    """
    truth = Truth()
    for mutant in MUTANTS:
        report = conform(mutant(truth), samples=samples, false_alarm=false_alarm, truth=truth, first_only=True)
        last, about = report.findings[-1], (mutant.__name__, mutant.__doc__ or "", not report)
        yield Caught(*about, *(() if report else (last.check.name, last.samples, report.samples, last.said)))
