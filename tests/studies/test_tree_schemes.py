"""The study that regenerates the table of docs/studies/tables/trees.md: its result file, its table, and its order."""

from __future__ import annotations

import json
import shutil
from itertools import pairwise
from pathlib import Path

import pytest
from support.scripts import run_script

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/studies/tables/trees.md"
RESULT = ROOT / "studies" / "trees" / "results" / "schemes.json"


def lines_of(page: Path) -> list[str]:
    inside = page.read_text().partition("<!-- begin: schemes -->")[2].partition("<!-- end: schemes -->")[0]
    return [line for line in inside.splitlines() if line.startswith(("| a ", "| two "))]


def test_the_table_on_the_page_is_that_of_the_result_file() -> None:
    result = json.loads(RESULT.read_text())
    lines = lines_of(PAGE)
    assert len(lines) == len(result["rows"]) == 13
    for line, row in zip(lines, result["rows"], strict=True):
        assert line.startswith(f"| {row['way']} |")
        assert line.endswith("".join(f"| {mean:.2f} " for mean in row["accepted_per_step"]) + "|")
    assert {"commit", "versions", "arguments"} <= set(result["provenance"])
    accepted = {row["way"].removeprefix("a tree, ").strip("`"): row["accepted_per_step"] for row in result["rows"]}
    ways = [*list(accepted.values())[:2], *(accepted[name] for name in ("recursive", "traversal", "match", "joint"))]
    _, block, hsd, *_ = accepted.values()
    assert hsd == pytest.approx(block, abs=1e-12)
    drafts = [means for way, means in accepted.items() if way.startswith("two")]
    for less, more in [*pairwise(ways), *pairwise([ways[1], *drafts])]:
        assert less[0] < more[0]
        assert less[1] <= more[1]


@pytest.mark.slow
def test_the_script_enumerates_what_the_result_file_says_of_its_first_toys(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    shutil.copy(PAGE, page)
    given = ("--toys", 2, "--results", tmp_path / "r.json", "--page", page)
    assert run_script("studies.trees.schemes", *given).returncode == 0
    rows = json.loads((tmp_path / "r.json").read_text())["rows"]
    assert [row["way"] for row in rows] == [row["way"] for row in json.loads(RESULT.read_text())["rows"]]
    assert all(0 < mean <= 2 for row in rows for mean in row["accepted_per_step"])
    assert len(lines_of(page)) == len(rows)
