"""The script that regenerates docs/trees_study.md."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import pytest
from support.scripts import ROOT, assert_rendered, run_script

PAGE, RESULTS = ROOT / "docs" / "trees_study.md", ROOT / "docs" / "results" / "trees"

run = partial(run_script, "trees_study.py")


@pytest.mark.slow
def test_the_page_is_rendered_from_its_result_files(tmp_path: Path) -> None:
    assert_rendered("trees_study.py", PAGE, tmp_path, folder=RESULTS)


@pytest.mark.slow
def test_a_small_study_runs_to_its_tables_and_picture(tmp_path: Path) -> None:
    page, folder = tmp_path / "page.md", tmp_path / "trees"
    shutil.copy(PAGE, page)
    shutil.copytree(RESULTS, folder, ignore=lambda _, names: [name for name in names if name != "passes.json"])
    given = ("--problems", 1, "--sampling", "plain", "--page", page, "--folder", folder)  # passes are not timed again
    first = run(*given)
    assert first.returncode == 0, first.stderr
    assert "adaptive tree: `tree:adaptive`" in page.read_text()
    assert (folder / "where-trees-pay.svg").exists()
    before = (folder / "plain-held-out.jsonl").read_bytes()
    assert run(*given).returncode == 0
    assert (folder / "plain-held-out.jsonl").read_bytes() == before, "nothing is answered twice"
