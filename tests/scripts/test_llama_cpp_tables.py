"""The scripts that measure llama.cpp: their tables on the page are those of their result files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from support.scripts import ROOT, assert_rendered, run_script

PAGE = ROOT / "docs" / "laptop.md"
SCRIPTS = ("llama_cpp_benchmark.py", "llama_cpp_overhead.py", "self_speculation.py")


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_table_on_the_page_is_rendered_from_its_result_file(script: str, tmp_path: Path) -> None:
    assert_rendered(script, PAGE, tmp_path)
    assert json.loads((ROOT / "docs/results" / script.replace(".py", ".json")).read_text())["provenance"]["commit"]


def test_llama_cpps_own_programs_must_be_named() -> None:
    for script, option in (("llama_cpp_benchmark.py", "--llama-server"), ("self_speculation.py", "--llama-quantize")):
        done = run_script(script)
        assert done.returncode == 2
        assert f"{option} must be the path" in done.stderr


@pytest.mark.slow
def test_overhead_is_measured_beside_both_models_passes(tmp_path: Path) -> None:
    page, results = tmp_path / "page.md", tmp_path / "r.json"
    shutil.copy(PAGE, page)
    given = ("--layers", 1, "--tokens", 6, "--results", results, "--page", page)
    done = run_script("llama_cpp_overhead.py", *given)
    assert done.returncode == 0, done.stderr
    for row in json.loads(results.read_text())["rows"]:
        assert min(row["target_ms"], row["draft_ms"], row["overhead_ms"]) > 0
        assert row["steps"] > 0
