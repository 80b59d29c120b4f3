"""The script that measures how near GGUF files are to transformers."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path

import pytest
from support.scripts import ROOT, assert_rendered, run_script

PAGE = ROOT / "docs/studies/tables/laptop.md"


run = partial(run_script, "studies.laptop.gguf_agreement")


@pytest.mark.slow
def test_the_table_on_the_page_is_rendered_from_its_result_file(tmp_path: Path) -> None:
    assert_rendered("studies.laptop.gguf_agreement", PAGE, tmp_path)


@pytest.mark.slow
def test_float32_is_exact_and_quantised_files_are_not(tmp_path: Path) -> None:
    page, results = tmp_path / "page.md", tmp_path / "r.json"
    shutil.copy(PAGE, page)
    assert run("--rows", 3, "--answers", 3, "--results", results, "--page", page).returncode == 0
    exact, *_, quantised = json.loads(results.read_text())["rows"]
    assert exact["transformers"]["largest"] < 1e-4 < 1e-3 < quantised["transformers"]["largest"]
    assert exact["one_by_one"]["largest"] < 1e-4
    assert (exact["equal"], exact["answers"]) == (3, 3)
