"""Writes the tables of docs/studies/structured_answers.md from the result files.

.venv/bin/python -m studies.structured_answers.page
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scripts.pages import table
from studies.pages import StudyPage
from studies.structured_answers.schemas import CASES
from studies.structured_answers.suite import FORMATS, REQUIRED

FOLDER = Path(__file__).with_name("results")
PAGE = Path(__file__).resolve().parents[2] / "docs/studies/structured_answers.md"
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", type=Path, default=PAGE)
    args = parser.parse_args()
    suite, answers = (json.loads((FOLDER / f"{name}.json").read_text()) for name in ("suite", "answers"))
    page = StudyPage(args.page)
    page.insert("suite", suite_table(suite["parts"][REQUIRED]))
    page.insert("formats", suite_table(suite["parts"][FORMATS]))
    page.insert("rejected", rejected_table(suite["notes"]))
    page.insert("answers", answers_table(answers["cases"]))
    page.write()


if __name__ == "__main__":
    main()
