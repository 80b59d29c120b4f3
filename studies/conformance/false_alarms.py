"""How often the suite of `cactus conform` calls a right engine wrong.

    python -m studies.conformance.false_alarms --runs 400 --output docs/results/conformance/false_alarms.json

The engine is `Reference`. A level of 0.05 is asked for, so that alarms can be seen at all. Each run has its own seeds;
a file that is there already, of the same settings, is gone on with.
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Any

from cactus_conform.reference import Reference
from cactus_conform.suite import conform
from cactus_conform.truth import Truth

from scripts.results import asked, parse, read, write


@cache
def truth() -> Truth:
    return Truth()


def run(settings: dict[str, Any], number: int) -> tuple[int, float, list[str]]:
    """Return how many responses a run took, its largest evidence, and the checks that raised an alarm."""
    report = conform(Reference(truth()), seed=number * 10**6, truth=truth(), **settings)
    wrong = [each.check.name for each in report.findings if each.right is False]
    return report.samples, round(max(each.evidence for each in report.findings), 3), wrong


def main() -> None:
    given = parse(__doc__, runs=400, samples=25, false_alarm=0.05, processes=1, output=(None, {"type": Path}))
    settings = {"samples": given.samples, "false_alarm": given.false_alarm}
    result: dict[str, Any] = {"settings": settings, "runs": 0, "alarms": [], "responses": 0, "largest_evidence": []}
    if given.output.exists() and (before := read(given.output)).get("settings") == settings:
        result = before
    with ProcessPoolExecutor(given.processes) as pool:
        numbers = range(result["runs"], given.runs)
        for number, found in zip(numbers, pool.map(partial(run, settings), numbers), strict=True):
            responses, evidence, wrong = found
            result["runs"] = number + 1
            result["responses"] += responses
            result["largest_evidence"].append(evidence)
            result["alarms"] += [{"run": number, "checks": wrong}] if wrong else []
            write(given.output, result, asked(given))


if __name__ == "__main__":
    main()
