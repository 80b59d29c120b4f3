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
    assert result["arguments"]["split"] == "test"
    assert [row["answers"] for row in result["rows"]] == [result["arguments"]["problems"]] * 6


@pytest.mark.slow
def test_a_run_of_its_own_gives_a_result_and_its_page(tmp_path: Path) -> None:
    run(tmp_path, "--problems", 2, "--results", tmp_path / "demo.json")
    rows = json.loads((tmp_path / "demo.json").read_text())["rows"]
    assert [row["answers"] for row in rows] == [2] * 6
    assert all("texts" not in row for row in rows)
    assert f"{rows[0]['right']}/2" in (tmp_path / "tutorial.md").read_text()
