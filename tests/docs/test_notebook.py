"""The documentation's notebook runs, and its committed outputs are what it gives."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.code_blocks import ROOT

SCRIPT = ROOT / "scripts/run_notebook.py"
NOTEBOOK = ROOT / "docs/notebooks/what_a_rule_costs.ipynb"


def code_cells(path: Path) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]


def text_of(cell: dict[str, Any]) -> str:
    return "".join(line for output in cell["outputs"] for line in output.get("text", []))


def test_the_notebook_is_committed_with_its_outputs() -> None:
    cells = code_cells(NOTEBOOK)
    assert len(cells) >= 5
    for cell in cells:
        assert cell["outputs"], cell["id"]
        assert all(output["output_type"] != "error" for output in cell["outputs"])
    assert any("image/svg+xml" in output.get("data", {}) for cell in cells for output in cell["outputs"])
    assert json.loads(NOTEBOOK.read_text())["metadata"]["provenance"]["commit"]


@pytest.mark.slow
def test_the_notebook_gives_its_committed_outputs(tmp_path: Path) -> None:
    path = tmp_path / "again.ipynb"
    done = subprocess.run([sys.executable, str(SCRIPT), "--output", str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for ours, theirs in zip(code_cells(path), code_cells(NOTEBOOK), strict=True):
        assert len(ours["outputs"]) == len(theirs["outputs"])
        if "varies" not in theirs["metadata"].get("tags", []):  # samples differ between kinds of processors
            assert text_of(ours) == text_of(theirs)
