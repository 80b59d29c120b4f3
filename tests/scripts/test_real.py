"""`make real` checks every engine on GGUF files: here on those of the bundled models."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.scripts import ROOT


def checked(folder: Path) -> subprocess.CompletedProcess[str]:
    """Check a folder from elsewhere, where there is no vLLM: its evaluations have tests on an engine of theirs."""
    command = [sys.executable, str(ROOT / "scripts" / "real.py"), str(folder)]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder)


@pytest.mark.slow
def test_every_engine_answers_from_a_folder_of_files(tmp_path: Path, gguf) -> None:
    for name in ("target", "worded"):
        (tmp_path / f"{name}.gguf").symlink_to(gguf(name))
    done = checked(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    *_, last = done.stdout.splitlines()
    names = re.findall(r"^ok +\d+ s  ([^,\n]*)", done.stdout, re.MULTILINE)
    assert {"llama.cpp", "transformers", "rows of that pair"} <= {*names}
    assert "no vLLM here" in done.stdout
    assert re.fullmatch(r"0 failed, \d+ seconds", last)


def test_a_folder_without_files_is_refused_in_a_line(tmp_path: Path) -> None:
    done = checked(tmp_path)
    assert done.returncode == 2
    assert "holds no GGUF files" in done.stderr.splitlines()[-1]
