"""The script that regenerates docs/training_study.md."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path

import pytest
from support.scripts import ROOT, assert_rendered, run_script

PAGE, RESULTS = ROOT / "docs" / "training_study.md", ROOT / "docs" / "results" / "training"

run = partial(run_script, "training_study.py")


@pytest.mark.slow
def test_the_page_is_rendered_from_its_result_files(tmp_path: Path) -> None:
    assert_rendered("training_study.py", PAGE, tmp_path, folder=RESULTS)


@pytest.mark.slow
def test_a_small_study_runs_to_its_tables_and_picture(tmp_path: Path) -> None:
    page, folder, work = tmp_path / "page.md", tmp_path / "training", tmp_path / "work"
    shutil.copy(PAGE, page)
    given = ("--small", 3, "--page", page, "--folder", folder, "--work", work)
    # The shard trains five of the drafts, and as the last one measures all that are there.
    done = run(*given, "--shard", "10/11")
    assert done.returncode == 0, done.stderr
    losses = json.loads((folder / "losses.json").read_text())["drafts"]
    assert [each["loss"] for each in losses].count("lk") == 1
    trained = {path: path.stat().st_mtime_ns for path in work.glob("*/model.safetensors")}
    four = (folder / "four.jsonl").read_bytes()
    again = run(*given, "--shard", "10/11", "--part", "losses", "four")
    assert again.returncode == 0, again.stderr
    assert {path: path.stat().st_mtime_ns for path in trained} == trained, "nothing is trained twice"
    assert (folder / "four.jsonl").read_bytes() == four, "nothing is answered twice"
    text = page.read_text()
    assert "trained for clamped, relaxed, protected" in text
    assert "bundled:worded adapting" in text
    assert (folder / "adaptation.svg").exists()
