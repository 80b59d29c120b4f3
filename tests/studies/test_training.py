"""The study that regenerates docs/studies/training.md."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
from support.scripts import ROOT, assert_rendered, copied_page, run_script

from studies.pages import tables_of
from studies.stored import read_packed

PAGE, RESULTS = ROOT / "docs" / "studies" / "training.md", ROOT / "studies" / "training" / "results"

run = partial(run_script, "studies.training.run")


@pytest.mark.slow
def test_the_page_is_rendered_from_its_result_files(tmp_path: Path) -> None:
    assert_rendered("studies.training.run", PAGE, tmp_path, folder=RESULTS)


@pytest.mark.slow
def test_a_small_study_runs_to_its_tables_and_picture(tmp_path: Path) -> None:
    page, folder, work = copied_page(PAGE, tmp_path), tmp_path / "training", tmp_path / "work"
    given = ("--small", 3, "--page", page, "--folder", folder, "--work", work)
    # The shard trains five of the drafts, and as the last one measures all that are there.
    done = run(*given, "--shard", "10/11")
    assert done.returncode == 0, done.stderr
    losses = json.loads(read_packed(folder / "losses.json"))["drafts"]
    assert [each["loss"] for each in losses].count("lk") == 1
    trained = {path: path.stat().st_mtime_ns for path in work.glob("*/model.safetensors")}
    four = (folder / "four.jsonl.gz").read_bytes()
    again = run(*given, "--shard", "10/11", "--part", "losses", "four")
    assert again.returncode == 0, again.stderr
    assert {path: path.stat().st_mtime_ns for path in trained} == trained, "nothing is trained twice"
    assert (folder / "four.jsonl.gz").read_bytes() == four, "nothing is answered twice"
    assert "trained for clamped, relaxed, protected" in tables_of(page).read_text()
    assert "bundled:worded adapting" in tables_of(page).read_text()
    assert (tmp_path / "pictures" / "training" / "adaptation.svg").exists()
