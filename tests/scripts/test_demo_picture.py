"""The script that measures the numbers of the first tutorial and draws its picture."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.code_blocks import ROOT

PAGE = ROOT / "docs/tutorial.md"


def run(folder: Path, *arguments: object) -> None:
    given = ["--page", shutil.copy(PAGE, folder), *arguments]
    command = [sys.executable, ROOT / "scripts/demo_picture.py", *given]
    done = subprocess.run([str(each) for each in command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_picture_and_page_are_rendered_from_the_result_file(tmp_path: Path) -> None:
    run(tmp_path, "--only-render")
    assert (tmp_path / PAGE.name).read_text() == PAGE.read_text()
    assert (tmp_path / "images/demo.svg").read_text() == (ROOT / "docs/images/demo.svg").read_text()


def test_the_result_file_says_where_it_comes_from() -> None:
    result = json.loads((ROOT / "docs/results/demo.json").read_text())
    assert result["provenance"]["commit"]
    assert "dirty" not in result["provenance"]["commit"]
    assert {run["cell"]["problems"] for run in result["runs"].values()} == {result["arguments"]["problems"]}


@pytest.mark.slow
def test_a_run_of_its_own_gives_a_result_and_its_page(tmp_path: Path) -> None:
    run(tmp_path, "--problems", 2, "--results", tmp_path / "demo.json")
    runs = json.loads((tmp_path / "demo.json").read_text())["runs"]
    assert {run["cell"]["problems"] for run in runs.values()} == {2}
    assert f"{runs['plain']['metrics']['seconds_per_answer']['value']:.3f}" in (tmp_path / "tutorial.md").read_text()
