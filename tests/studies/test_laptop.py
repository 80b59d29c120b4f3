"""What measures llama.cpp: their tables on the page are those of their result files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from support.scripts import ROOT, assert_rendered, run_script

from studies.stored import read_packed

TABLES = ROOT / "docs/studies/tables/laptop.md"
STUDIES = ("benchmark", "overhead", "self_speculation")
RESULTS = ROOT / "studies" / "laptop" / "results"


@pytest.mark.slow
@pytest.mark.parametrize("study", STUDIES)
def test_the_table_on_the_page_is_rendered_from_its_result_file(study: str, tmp_path: Path) -> None:
    assert_rendered(f"studies.laptop.{study}", TABLES, tmp_path)
    path = RESULTS / f"{study}.json"
    assert json.loads(path.read_text() if path.exists() else read_packed(path))["provenance"]["commit"]


@pytest.mark.slow
def test_llama_cpps_own_programs_must_be_named() -> None:
    for study, option in (("benchmark", "--llama-server"), ("self_speculation", "--llama-quantize")):
        done = run_script(f"studies.laptop.{study}")
        assert done.returncode == 2
        assert f"{option} must be the path" in done.stderr


@pytest.mark.slow
def test_overhead_is_measured_beside_both_models_passes(tmp_path: Path) -> None:
    page, results = tmp_path / "page.md", tmp_path / "r.json"
    shutil.copy(TABLES, page)
    given = ("--layers", 1, "--tokens", 6, "--results", results, "--page", page)
    done = run_script("studies.laptop.overhead", *given)
    assert done.returncode == 0, done.stderr
    for row in json.loads(results.read_text())["rows"]:
        assert min(row["target_ms"], row["draft_ms"], row["overhead_ms"]) > 0
        assert row["steps"] > 0
