"""The script that regenerates docs/study.md."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import pytest
from support.scripts import ROOT, assert_rendered, run_script

PAGE, RESULTS = ROOT / "docs" / "study.md", ROOT / "docs" / "results" / "study"


run = partial(run_script, "study.py")


@pytest.mark.slow
def test_the_study_on_the_page_is_rendered_from_its_result_files(tmp_path: Path) -> None:
    assert_rendered("study.py", PAGE, tmp_path, folder=RESULTS)


@pytest.mark.slow
def test_a_small_study_runs_to_its_tables_and_pictures(tmp_path: Path) -> None:
    page, folder = tmp_path / "page.md", tmp_path / "study"
    shutil.copy(PAGE, page)
    given = ("--problems", 1, "--positions", 40, "--page", page, "--folder", folder)
    first = run(*given)
    assert first.returncode == 0, first.stderr
    assert "clamped:width=" in page.read_text()
    assert sorted(path.suffix for path in folder.iterdir()) == [".json"] * 2 + [".jsonl"] * 2 + [".svg"] * 6
    before = (folder / "plain.jsonl").read_bytes()
    assert run(*given).returncode == 0
    assert (folder / "plain.jsonl").read_bytes() == before, "nothing is answered twice"
