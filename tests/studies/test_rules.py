"""The study that regenerates docs/studies/rules.md."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from support.scripts import ROOT, assert_rendered, copied_page, run_script

PAGE, RESULTS = ROOT / "docs" / "studies" / "rules.md", ROOT / "studies" / "rules" / "results"


run = partial(run_script, "studies.rules.run")


@pytest.mark.slow
def test_the_study_on_the_page_is_rendered_from_its_result_files(tmp_path: Path) -> None:
    assert_rendered("studies.rules.run", PAGE, tmp_path, folder=RESULTS)


@pytest.mark.slow
def test_a_small_study_runs_to_its_tables_and_pictures(tmp_path: Path) -> None:
    page, folder = copied_page(PAGE, tmp_path), tmp_path / "study"
    given = ("--problems", 1, "--positions", 40, "--page", page, "--folder", folder)
    first = run(*given)
    assert first.returncode == 0, first.stderr
    assert "clamped:width=" in page.read_text()
    assert sorted(path.suffix for path in folder.iterdir()) == [".gz"] * 2 + [".json"] * 2
    assert len(list((tmp_path / "pictures" / "rules").glob("*.svg"))) == 6
    before = (folder / "plain.jsonl.gz").read_bytes()
    assert run(*given).returncode == 0
    assert (folder / "plain.jsonl.gz").read_bytes() == before, "nothing is answered twice"
