"""The script that measures how many greedy answers are those of `generate`."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path

import pytest
from support.scripts import ROOT, assert_rendered, run_script

PAGE = ROOT / "docs" / "hugging_face.md"


run = partial(run_script, "studies.greedy_agreement.run")


def test_the_table_on_the_page_is_rendered_from_its_result_file(tmp_path: Path) -> None:
    assert_rendered("studies.greedy_agreement.run", PAGE, tmp_path)


@pytest.mark.slow
def test_in_float32_answers_are_those_of_generate(tmp_path: Path) -> None:
    page, results = tmp_path / "page.md", tmp_path / "r.json"
    shutil.copy(PAGE, page)
    assert run("--problems", 3, "--results", results, "--page", page).returncode == 0
    rows = {row["dtype"]: row["equal"] for row in json.loads(results.read_text())["rows"]}
    assert set(rows["float32"].values()) == {3}
