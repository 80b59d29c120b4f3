"""The study that regenerates docs/studies/relaxing.md."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from support.scripts import ROOT, assert_rendered, copied_page, run_script

from studies.pages import tables_of

PAGE, RESULTS = ROOT / "docs" / "studies" / "relaxing.md", ROOT / "studies" / "relaxing" / "results"


run = partial(run_script, "studies.relaxing.run")


@pytest.mark.slow
def test_the_page_is_rendered_from_its_result_files(tmp_path: Path) -> None:
    assert_rendered("studies.relaxing.run", PAGE, tmp_path, folder=RESULTS)


@pytest.mark.slow
def test_a_small_study_runs_to_its_tables_and_pictures(tmp_path: Path) -> None:
    page, folder = copied_page(PAGE, tmp_path), tmp_path / "relaxing"
    given = ("--problems", 1, "--sampling", "truncated", "--page", page, "--folder", folder)
    first = run(*given, "--only-answer")
    assert first.returncode == 0, first.stderr
    parts = {"chosen", "tuned", "paper", "grid"}
    assert {path.name for path in folder.glob("*.jsonl*")} == {f"truncated-{part}.jsonl.gz" for part in parts}
    before = (folder / "truncated-grid.jsonl.gz").read_bytes()
    assert run(*given, "--only-answer").returncode == 0
    assert (folder / "truncated-grid.jsonl.gz").read_bytes() == before, "nothing is answered twice"
    assert run(*given, "--only-render").returncode == 0, "a sampling that was not answered is not rendered"
    assert "protecting digits" in tables_of(page).read_text()
