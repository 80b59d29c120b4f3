"""The script that regenerates docs/relaxing_study.md."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import pytest
from support.scripts import ROOT, assert_rendered, run_script

PAGE, RESULTS = ROOT / "docs" / "relaxing_study.md", ROOT / "docs" / "results" / "relaxing"


run = partial(run_script, "relaxing_study.py")


@pytest.mark.slow
def test_the_page_is_rendered_from_its_result_files(tmp_path: Path) -> None:
    assert_rendered("relaxing_study.py", PAGE, tmp_path, folder=RESULTS)


@pytest.mark.slow
def test_a_small_study_runs_to_its_tables_and_pictures(tmp_path: Path) -> None:
    page, folder = tmp_path / "page.md", tmp_path / "relaxing"
    shutil.copy(PAGE, page)
    given = ("--problems", 1, "--sampling", "truncated", "--page", page, "--folder", folder)
    first = run(*given, "--only-answer")
    assert first.returncode == 0, first.stderr
    parts = {"chosen", "tuned", "paper", "grid"}
    assert {path.name for path in folder.glob("*.jsonl")} == {f"truncated-{part}.jsonl" for part in parts}
    before = (folder / "truncated-grid.jsonl").read_bytes()
    assert run(*given, "--only-answer").returncode == 0
    assert (folder / "truncated-grid.jsonl").read_bytes() == before, "nothing is answered twice"
    assert run(*given, "--only-render").returncode == 0, "a sampling that was not answered is not rendered"
    assert "protecting digits" in page.read_text()
