"""How often the suite of `cactus conform` calls a right engine wrong.

    python -m studies.conformance.false_alarms --runs 400

The engine is `Reference`. A level of 0.05 is asked for, so that alarms can be seen at all. Each run has its own seeds;
a file that is there already, of the same settings, is gone on with.
"""

from __future__ import annotations

from typing import Any

from cactus_conform.reference import Reference
from cactus_conform.suite import conform
from cactus_conform.truth import Truth

from scripts.pages import ROOT
from scripts.results import asked, parse, read, write

RESULTS = ROOT / "docs" / "results" / "conformance" / "false_alarms.json"

if __name__ == "__main__":
    given, truth = parse(__doc__, runs=400, samples=25, false_alarm=0.05, output=RESULTS), Truth()
    settings = {"samples": given.samples, "false_alarm": given.false_alarm}
    result: dict[str, Any] = {"settings": settings, "runs": 0, "alarms": [], "responses": 0, "largest_evidence": []}
    if given.output.exists() and (before := read(given.output)).get("settings") == settings:
        result = before
    for number in range(result["runs"], given.runs):
        report = conform(Reference(truth), seed=number * 10**6, truth=truth, **settings)
        wrong = [each.check.name for each in report.findings if each.right is False]
        result["runs"] = number + 1
        result["responses"] += report.samples
        result["largest_evidence"].append(round(max(each.evidence for each in report.findings), 3))
        result["alarms"] += [{"run": number, "checks": wrong}] if wrong else []
        write(given.output, result, asked(given))
