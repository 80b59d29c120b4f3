"""The study that regenerates docs/studies/trees.md."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import pytest
from support.scripts import ROOT, assert_rendered, copied_page, run_script

from studies.pages import tables_of

PAGE, RESULTS = ROOT / "docs" / "studies" / "trees.md", ROOT / "studies" / "trees" / "results"

run = partial(run_script, "studies.trees.run")


@pytest.mark.slow
def test_the_page_is_rendered_from_its_result_files(tmp_path: Path) -> None:
    assert_rendered("studies.trees.run", PAGE, tmp_path, folder=RESULTS)


@pytest.mark.slow
def test_a_small_study_runs_to_its_tables_and_picture(tmp_path: Path) -> None:
    page, folder = copied_page(PAGE, tmp_path), tmp_path / "trees"
    shutil.copytree(RESULTS, folder, ignore=lambda _, names: [name for name in names if name != "passes.json"])
    given = ("--problems", 1, "--sampling", "plain", "--page", page, "--folder", folder)  # passes are not timed again
    first = run(*given)
    assert first.returncode == 0, first.stderr
    assert "adaptive tree: `tree=adaptive`" in tables_of(page).read_text()
    assert (tmp_path / "pictures" / "trees" / "where-trees-pay.svg").exists()
    before = (folder / "plain-held-out.jsonl.gz").read_bytes()
    assert run(*given).returncode == 0
    assert (folder / "plain-held-out.jsonl.gz").read_bytes() == before, "nothing is answered twice"
