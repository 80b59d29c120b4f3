"""Loops of agents with tools, by five clients, as `scripts/tool_loops.py` counted them.

python -m studies.structured_answers.loops FILE ...          its result files
python -m studies.structured_answers.loops --only-render     the table, from the result file
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scripts.pages import table
from scripts.results import read
from studies.study import study

RESULTS = Path(__file__).with_name("results") / "loops.json"
COUNTS = {
    "loops": "loops", "calls": "calls", "parsed": "parsed", "failed": "failed", "cut": "cut by length",
    "completed": "loops with an answer",
}  # fmt: skip


def measure(given: Namespace) -> dict[str, Any]:
    return {"runs": [read(path) for path in given.files]}


def shown(result: Mapping[str, Any]) -> dict[str, str]:
    rows = []
    for run in result["runs"]:
        for name, found in run["clients"].items():
            rows.append([run["model"], run["agents"], name, *(found[each] for each in COUNTS)])
        rows.append(["", "", "**all**", *(sum(each[count] for each in run["clients"].values()) for count in COUNTS)])
    return {"loops": table(["model", "loops at once", "client", *COUNTS.values()], rows, names=3)}


if __name__ == "__main__":
    files = ([], "result files", {"type": Path, "positional": True, "nargs": "*"})
    study(__doc__, RESULTS, "studies/structured_answers.md", measure, shown, needed=["files"], files=files)
