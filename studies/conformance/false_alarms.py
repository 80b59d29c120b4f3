"""How often the suite of `cactus conform` calls a right engine wrong.

    python -m studies.conformance.false_alarms --runs 400 --output docs/results/conformance/false_alarms.json

The engine draws from the target's law itself. A level of 0.05 is asked for, so that alarms can be seen at all.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from cactus_decoding.conformance.reference import FromTheLaw
from cactus_decoding.conformance.suite import conform
from cactus_decoding.conformance.truth import Truth
from cactus_decoding.files.provenance import provenance
from cactus_decoding.files.writing import as_json, write_atomically


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=400)
    parser.add_argument("--samples", type=int, default=50)
    parser.add_argument("--false-alarm", type=float, default=0.05)
    parser.add_argument("--output", type=Path, required=True)
    given = parser.parse_args(arguments)
    truth, alarms, responses, largest = Truth(), list[dict[str, object]](), 0, list[float]()
    for run in range(given.runs):
        report = conform(
            FromTheLaw(truth), samples=given.samples, false_alarm=given.false_alarm, seed=run * 10**6, truth=truth
        )
        responses += report.samples
        largest.append(max(each.evidence for each in report.findings))
        wrong = [each for each in report.findings if not each.right]
        if wrong:
            alarms.append({"run": run, "checks": [each.check.name for each in wrong]})
        result = {"runs": run + 1, "alarms": alarms, "responses": responses, "largest_evidence": largest}
        arguments_given = {name: str(value) for name, value in vars(given).items()}
        write_atomically(given.output, as_json(result | {"provenance": provenance(arguments_given)}, indent=1) + "\n")


if __name__ == "__main__":
    main()
