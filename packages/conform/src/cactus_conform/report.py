"""What checks find, how a suite reports it, and result files."""

from __future__ import annotations

import math
import os
import platform
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import NormalDist
from typing import Any, NamedTuple, TextIO

from cactus_conform.checks import Check


@dataclass(frozen=True)
class Finding:
    check: Check
    right: bool | None  # None: worth a note, but no mistake
    samples: int  # responses that it took
    evidence: float = 0.0  # log of the e-value; infinite for what a right engine never does
    # total variation that is excluded from here on, for each of the first three tokens, prompts and samplings
    deviation: float | None = None
    said: str = ""  # what is wrong, and its likely cause; or what else is excluded


class Acceptance(NamedTuple):
    """The share of accepted proposals among an engine's tokens."""

    found: float
    possible: float  # that of `Reference` on the same questions, the most a lossless test can accept
    error: float  # standard error of the difference, with responses as units

    def too_little(self, false_alarm: float) -> bool:
        """Whether less is accepted than could be, with this chance of blaming an engine that accepts all it can.

        Example:
            >>> Acceptance(0.263, 0.315, 0.03).too_little(1e-3), Acceptance(0.263, 0.315, 0.01).too_little(1e-3)
            (False, True)
        """
        return self.found < self.possible - NormalDist().inv_cdf(1 - false_alarm) * self.error


@dataclass
class ConformanceReport:
    """What a suite found; it is true if everything is right."""

    engine: str
    false_alarm: float  # largest probability that a right engine is called wrong
    findings: list[Finding] = field(default_factory=list)
    seconds: float = 0.0
    processor_seconds: float = 0.0  # of this process only; servers and engines' own processes use others
    failure: str = ""  # why a gate is closed although no check found a mistake
    acceptance: dict[str, Acceptance] = field(default_factory=dict)  # by draft, where the engine counts it

    @property
    def right(self) -> bool:
        return not self.failure and all(each.right is not False for each in self.findings)

    def __bool__(self) -> bool:
        return self.right

    @property
    def wrong(self) -> list[Finding]:
        return [each for each in self.findings if each.right is False]

    @property
    def samples(self) -> int:
        return sum(each.samples for each in self.findings)


def line(finding: Finding) -> str:
    word = {True: "right", False: "WRONG", None: "note"}[finding.right]
    said = finding.said
    if finding.right is False and math.isfinite(finding.evidence):
        said = f"odds of e^{finding.evidence:.0f} against a lossless engine; most evidence for: {said}"
    elif finding.deviation is not None:
        said = f"excluded: deviations above {finding.deviation:.2f}"
    return f"{word:6} {finding.check.name:44} {finding.samples:4} responses" + (f"; {said}" if said else "")


def verdict(report: ConformanceReport) -> Iterable[str]:
    wrong = report.wrong
    deviations = [each.deviation for each in report.findings if each.deviation is not None]
    seconds = f"{report.seconds:.0f} s ({report.processor_seconds:.0f} s of the processor)"
    asked = f"{len(report.findings)} checks, {report.samples:,} responses, {seconds}"
    if wrong:
        yield f"{report.engine} is WRONG in {len(wrong)} of {asked}."
        [(said, times)] = Counter(each.said.partition(" (")[0] for each in wrong).most_common(1)
        if times > 1:
            yield f"{times} checks point to the same: {said}."
    else:
        yield f"{report.engine} is right in {asked}." if report.right else f"The gate is closed: {report.failure}."
    if deviations:
        yield (
            f"Total variation of one of the first three tokens above {max(deviations):.2f} is excluded by each of "
            f"{len(deviations)} checks, above {min(deviations):.2f} by the longest; the others say what else is."
        )
    yield f"A right engine is called wrong with probability {report.false_alarm:g} at most, over all checks."
    for draft, each in report.acceptance.items():
        slow = "; it could accept more" if each.too_little(report.false_alarm / len(report.acceptance)) else ""
        accepted = f"Accepted proposals are {each.found:.0%} of its tokens with the {draft} draft"
        yield f"{accepted}; {each.possible:.0%} are possible, with a standard error of {each.error:.1%}{slow}."


def gate_verdict(report: ConformanceReport) -> dict[str, Any]:
    return {
        "verdict": "pass" if report.right else "fail",
        "engine": report.engine,
        "failure": report.failure,
        "wrong": [{"check": each.check.name, "said": each.said} for each in report.wrong],
        "excluded_total_variation": max((each.deviation for each in report.findings if each.deviation), default=None),
        "checks": len(report.findings),
        "responses": report.samples,
        "false_alarm": report.false_alarm,
        "seconds": round(report.seconds, 1),
    }


def as_dict(report: ConformanceReport) -> dict[str, Any]:
    """Return a report for JSON, which has no infinity: infinite evidence is None."""
    findings = [
        asdict(each)
        | {"check": each.check.name, "sampling": asdict(each.check.sampling)}
        | {"evidence": each.evidence if math.isfinite(each.evidence) else None}
        for each in report.findings
    ]
    return asdict(report) | {"right": report.right, "samples": report.samples, "findings": findings}


_VERSIONS = ("cactus-conform", "numpy", "cactus-decoding", "llama-cpp-python", "torch", "transformers", "vllm")


@contextmanager
def writing(path: Path) -> Iterator[TextIO]:
    """Open a file that takes the path's place once the block is done; a pipe or a device is written as it is.

    Raises `ValueError`, before the block, for a path that cannot be written.
    """
    place = Path(os.path.realpath(path))  # a symbolic link stays
    special = place.exists() and not place.is_file()
    beside = place if special else place.with_name(f"{place.name}.{os.getpid()}.part")
    try:
        file = beside.open("w")
    except OSError as error:
        raise ValueError(f"cannot write {str(path)!r}: {error.strerror}") from None
    try:
        with file:
            yield file
        if not special:
            os.replace(beside, place)
    finally:
        if not special:
            beside.unlink(missing_ok=True)


def provenance(arguments: Mapping[str, object]) -> dict[str, object]:
    """Return where a result comes from, for JSON; seeds are among the arguments."""
    versions = {"python": platform.python_version()}
    for name in _VERSIONS:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return {
        "arguments": dict(arguments),
        "commit": _commit(),
        "versions": versions,
        "machine": platform.platform(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _commit() -> str | None:
    """Return the commit of the checkout that the package runs from, with ``-dirty`` for local changes; else None."""
    checkout = Path(__file__).resolve().parents[4]
    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    if not (checkout / ".git").exists():  # installed, perhaps below a checkout of something else
        return None
    with suppress(OSError, subprocess.CalledProcessError):  # no git, or no commit yet
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() or None
    return None
