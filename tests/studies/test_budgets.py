"""What regenerates the tables and the picture of docs/studies/budgets.md."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from support.scripts import ROOT, assert_rendered, run_script

PAGES = ROOT / "docs" / "studies"
PAGE = PAGES / "tables" / "budgets.md"


@pytest.mark.slow
def test_the_enumeration_on_the_page_is_what_the_script_enumerates(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    shutil.copy(PAGE, page)
    assert run_script("studies.budgets.enumeration", "--results", tmp_path / "r.json", "--page", page).returncode == 0
    assert page.read_text() == PAGE.read_text()
    rows = json.loads((tmp_path / "r.json").read_text())["rows"]
    kept = [row for row in rows if "wrong" not in row["rule"]]
    for row in kept:
        assert all(kl <= limit for kl, limit in zip(row["budgets"], (0.02, 0.1, 0.5), strict=True))
    assert any(kl > limit for row in rows for kl, limit in zip(row["budgets"], (0.02, 0.1, 0.5), strict=True))


def test_the_study_on_the_page_is_rendered_from_its_result_file(tmp_path: Path) -> None:
    assert_rendered("studies.budgets.run", PAGE, tmp_path, picture=PAGES / "pictures" / "budgets.svg")


@pytest.mark.slow
def test_the_study_can_be_stopped_and_continued(tmp_path: Path) -> None:
    page, results = tmp_path / "page.md", tmp_path / "r.jsonl"
    shutil.copy(PAGE, page)
    given = ("--problems", 1, "--results", results, "--page", page, "--picture", tmp_path / "p.svg")
    assert run_script("studies.budgets.run", *given).returncode == 0
    whole, table = results.read_text().splitlines(), page.read_text()
    results.write_text("\n".join(whole[:3]) + "\n" + whole[3][:100])  # killed while it wrote the fourth
    assert run_script("studies.budgets.run", *given, "--only-render").returncode == 2
    assert run_script("studies.budgets.run", *given).returncode == 0
    assert results.read_text().splitlines()[:3] == whole[:3]
    assert page.read_text() == table
    assert run_script("studies.budgets.run", "--problems", 0).returncode == 2
