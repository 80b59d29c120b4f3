"""`make real` checks every engine on GGUF files: here on those of the bundled models."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pytest
from support.scripts import run_script

checked = partial(run_script, "real.py")


@pytest.mark.slow
def test_every_engine_answers_from_a_folder_of_files(tmp_path: Path, gguf) -> None:
    for name in ("target", "worded"):
        (tmp_path / f"{name}.gguf").symlink_to(gguf(name))
    done = checked(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    *_, last = done.stdout.splitlines()
    names = re.findall(r"^ok +\d+ s  ([^,\n]*)", done.stdout, re.MULTILINE)
    assert {"llama.cpp", "transformers", "rows of that pair"} <= {*names}
    assert re.fullmatch(r"0 failed, \d+ seconds", last)


def test_a_folder_without_files_is_refused_in_a_line(tmp_path: Path) -> None:
    done = checked(tmp_path)
    assert done.returncode == 2
    assert "holds no GGUF files" in done.stderr.splitlines()[-1]
