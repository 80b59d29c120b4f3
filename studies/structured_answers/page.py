"""Writes the tables of docs/studies/structured_answers.md from the result files.

.venv/bin/python -m studies.structured_answers.page
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from scripts.pages import ROOT, put, table
from scripts.results import parse, read
from studies.structured_answers.answers import RESULTS as ANSWERS
from studies.structured_answers.schemas import CASES
from studies.structured_answers.suite import FORMATS, REQUIRED
from studies.structured_answers.suite import RESULTS as SUITE

PAGE = ROOT / "docs" / "studies" / "structured_answers.md"
COLUMNS = {
    "valid accepted": "valid, accepted", "valid rejected": "valid, rejected", "invalid excluded": "invalid, excluded",
    "invalid accepted": "invalid, accepted", "refused": "in refused schemas", "generated": "generated, checked",
    "wrong": "of these wrong",
}  # fmt: skip


def suite_table(keywords: Mapping[str, Mapping[str, int]]) -> str:
    """Return how each keyword fared, and all of them together."""
    total = {each: sum(counts[each] for counts in keywords.values()) for each in COLUMNS}
    rows = [[name, *(counts[each] for each in COLUMNS)] for name, counts in [*keywords.items(), ("**all**", total)]]
    return table(["file of the suite", *COLUMNS.values()], rows)


def rejected_table(notes: list[dict[str, Any]]) -> str:
    """Return the valid values that are not allowed."""
    rejected = [note for note in notes if note.get("outcome") == "valid rejected" and note["part"] == REQUIRED]
    rows = [[note["keyword"], f"`{json.dumps(note['instance'])}`", note["says"]] for note in rejected]
    return table(["file", "value", "why the suite calls it valid"], rows, names=3)


def answers_table(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Return how many answers to each schema are valid."""
    names = ("answers", "different", "valid", "cut")
    rows = list[list[object]]()
    for case in (case for case in CASES if case.name in found):
        each = found[case.name]
        rows.append([f"[{case.name}]({case.report})", *(each[name] for name in names), f"`{each['example']}`"])
    rows.append(["**all**", *(sum(each[name] for each in found.values()) for name in names), ""])
    return table(["schema", "answers", "different", "valid", "cut by length", "the shortest"], rows)


def shown() -> dict[str, str]:
    suite = read(SUITE)
    return {
        "suite": suite_table(suite["parts"][REQUIRED]),
        "formats": suite_table(suite["parts"][FORMATS]),
        "rejected": rejected_table(suite["notes"]),
        "answers": answers_table(read(ANSWERS)["cases"]),
    }


if __name__ == "__main__":
    put(parse(__doc__, page=PAGE).page, shown())
