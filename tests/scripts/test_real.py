"""`make real` checks every engine on GGUF files: here on those of the bundled models."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pytest
from support.scripts import run_script

from cactus_decoding.engines.transformers import compatibility
from scripts import try_versions
from scripts.pages import insert
from scripts.try_versions import PAGE, main, numbers, results, table_of

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


def test_the_table_of_the_page_is_that_of_the_result_file():
    page = PAGE.read_text()
    assert insert(page, "versions", table_of(results())) == page


def test_the_newest_version_is_left_out_where_it_is_the_installed_one(monkeypatch, capsys):
    monkeypatch.setattr(try_versions, "newest_of", lambda engine: compatibility.transformers.__version__)
    assert numbers("transformers", ["lowest", "newest"]) == [compatibility.TRIED[0]]
    assert "which is installed, is the newest" in capsys.readouterr().out
    monkeypatch.setattr(try_versions, "newest_of", lambda engine: "5.99.0")
    assert numbers("transformers", ["newest", "5.22.2"]) == ["5.99.0", "5.22.2"]


def test_an_engine_and_a_version_must_be_named(capsys):
    with pytest.raises(SystemExit):
        main(["transformers"])
    assert "name an engine and at least one version" in capsys.readouterr().err
