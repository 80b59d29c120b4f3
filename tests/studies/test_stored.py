"""Result files of studies: an interrupted one goes on, and a whole one is small and always the same."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from support.result_files import made

from scripts.pages import put, tables_of
from studies.stored import opened, packed, read_results


def test_a_file_that_was_interrupted_stays_plain_until_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    with opened(path) as file:
        file.append(made("lossless", 2))
    assert not path.exists()
    whole = packed(path).read_bytes()
    with pytest.raises(KeyboardInterrupt):
        _add_and_interrupt(path)
    assert packed(path).read_bytes() == whole
    assert len(read_results(path)) == 2
    with opened(path) as file:
        assert len(file.results) == 2
    assert not path.exists()
    assert [found.config.rule for found in read_results(path)] == ["lossless", "clamped:width=1.0"]
    whole = packed(path).read_bytes()
    with opened(path):
        pass
    assert packed(path).read_bytes() == whole


def test_numbers_are_kept_to_seven_digits(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    with opened(path) as file:
        file.append(made("lossless", 2))
    seconds = json.loads(gzip.decompress(packed(path).read_bytes()))["answers"]["seconds"]
    assert seconds == [float(f"{value:.7g}") for value in seconds]


def _add_and_interrupt(path: Path) -> None:
    with opened(path) as file:
        file.append(made("clamped:width=1.0", 2))
        raise KeyboardInterrupt


MARKED = "# {0}\n\n<!-- begin: {0} -->\n\nold\n\n<!-- end: {0} -->\n"


def test_a_table_goes_where_its_marks_are(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    tables_of(page).parent.mkdir()
    page.write_text(MARKED.format("short"))
    tables_of(page).write_text(MARKED.format("long"))
    put(page, {"long": "many rows", "short": "few rows", "pictures/a/b.svg": "<svg/>"})
    with pytest.raises(ValueError, match="begin: neither"):
        put(page, {"neither": ""})
    assert (tmp_path / "pictures/a/b.svg").read_text() == "<svg/>"
    assert page.read_text() == MARKED.format("short").replace("old", "few rows")
    assert tables_of(page).read_text() == MARKED.format("long").replace("old", "many rows")
