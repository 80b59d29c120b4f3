"""How often the suite of `cactus conform` calls a right engine wrong.

    python -m studies.conformance.false_alarms --runs 400 --output docs/results/conformance/false_alarms.json

The engine is `Reference`. A level of 0.05 is asked for, so that alarms can be seen at all. Each run has its own seeds;
a file that is there already, of the same settings, is gone on with.
"""

from __future__ import annotations

import argparse
import json
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Any

from cactus_conform.reference import Reference
from cactus_conform.suite import conform
from cactus_conform.truth import Truth

from cactus_decoding.core.files.provenance import provenance
from cactus_decoding.core.files.writing import as_json, write_atomically


@cache
def truth() -> Truth:
    return Truth()


def run(settings: dict[str, Any], number: int) -> tuple[int, float, list[str]]:
    """Return how many responses a run took, its largest evidence, and the checks that raised an alarm."""
    report = conform(Reference(truth()), seed=number * 10**6, truth=truth(), **settings)
    wrong = [each.check.name for each in report.findings if each.right is False]
    return report.samples, round(max(each.evidence for each in report.findings), 3), wrong


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=400)
    parser.add_argument("--samples", type=int, default=25)
    parser.add_argument("--false-alarm", type=float, default=0.05)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--output", type=Path, required=True)
    given = parser.parse_args(arguments)
    settings = {"samples": given.samples, "false_alarm": given.false_alarm}
    result: dict[str, Any] = {"settings": settings, "runs": 0, "alarms": [], "responses": 0, "largest_evidence": []}
    if given.output.exists() and (before := json.loads(given.output.read_text())).get("settings") == settings:
        result = before
    with ProcessPoolExecutor(given.processes) as pool:
        numbers = range(result["runs"], given.runs)
        for number, (responses, evidence, wrong) in zip(
            numbers, pool.map(partial(run, settings), numbers), strict=True
        ):
            result["runs"] = number + 1
            result["responses"] += responses
            result["largest_evidence"].append(evidence)
            result["alarms"] += [{"run": number, "checks": wrong}] if wrong else []
            result["provenance"] = provenance({name: str(value) for name, value in vars(given).items()})
            write_atomically(given.output, as_json(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
