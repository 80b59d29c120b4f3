"""The script that measures how many greedy answers are the engine's own."""

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
def test_in_float32_answers_are_the_engines_own_and_other_engines_are_kept(tmp_path: Path) -> None:
    page, results = tmp_path / "page.md", tmp_path / "r.json"
    shutil.copy(PAGE, page)
    for engine in ("llama.cpp", "transformers"):
        done = run(engine, "--problems", 2, "--results", results, "--page", page)
        assert done.returncode == 0, done.stderr
    rows = json.loads(results.read_text())["rows"]
    assert [row["engine"] for row in rows] == ["transformers"] * 10 + ["llama.cpp"] * 8
    assert {row["equal"] for row in rows if row["dtype"] == "float32"} == {2}
    assert "| llama.cpp, float32 |  | 2 of 2 |" in page.read_text()


def test_an_engine_that_is_none_is_refused(tmp_path: Path) -> None:
    done = run("sglang", "--results", tmp_path / "r.json")
    assert done.returncode == 2
    assert "there is no engine 'sglang'; choose from transformers, llama.cpp, vllm" in done.stderr
