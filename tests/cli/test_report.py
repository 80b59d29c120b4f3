"""`cactus report`: a page and a table, and bad files named before anything is overwritten."""

from __future__ import annotations

import json

import pytest
from support.recorded_rows import some_rows
from support.result_files import made, several, write

from cactus_decoding.lab.frontier.frontier import as_result, frontier
from cactus_decoding.lab.frontier.relaxations import FAMILIES

GOOD = made("lossless", 4).line()


def frontier_file(path):
    rows = some_rows()
    result = as_result(frontier(rows, list(FAMILIES.values()), points=3), rows, {"commit": "0" * 40})
    path.write_text(json.dumps(result))
    return path


def test_the_command_writes_page_and_table(run, tmp_path):
    first, second = write(tmp_path / "a.jsonl", several()), write(tmp_path / "b.jsonl", several(draft="ngram"))
    page, table = tmp_path / "report.html", tmp_path / "table.md"
    added = frontier_file(tmp_path / "frontier.json")
    code, out, err = run("report", str(first), str(second), "--output", str(page), "--markdown", str(table),
                         "--frontier", str(added))  # fmt: skip
    assert (code, err) == (0, "")
    assert str(page) in out
    assert page.read_text().count("<img") == 10
    assert "draft ngram" in table.read_text()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "a.jsonl: No such file or directory"),
        ("", "a.jsonl: there is no finished run in this file"),
        (GOOD + "{broken\n", "a.jsonl, line 2: this is not"),
        (GOOD + '{"x": 1}\n', "a.jsonl, line 2: this is not a result of cactus eval"),
        (GOOD.replace('"schema": 1', '"schema": 7'), "a.jsonl, line 1: schema is 7, but this version reads schema 1"),
        (GOOD + GOOD, "a.jsonl, line 2: this run is also in"),
        (GOOD.replace('"steps": [10, ', '"steps": ['), "a.jsonl, line 1: the answers must have 60 entries"),
    ],
)
def test_bad_files_are_named_and_nothing_is_overwritten(run, tmp_path, text, message):
    given, page, table = tmp_path / "a.jsonl", tmp_path / "report.html", tmp_path / "table.md"
    if text is not None:
        given.write_text(text)
    page.write_text("kept")
    code, out, err = run("report", str(given), "--output", str(page), "--markdown", str(table))
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert page.read_text() == "kept"
    assert not table.exists()


def test_a_bad_frontier_and_bad_outputs_are_mistakes_too(run, tmp_path):
    given, page = write(tmp_path / "a.jsonl", several()), tmp_path / "report.html"
    (tmp_path / "f.json").write_text('{\n"kind": oops}')
    code, _, err = run("report", str(given), "--output", str(page), "--frontier", str(tmp_path / "f.json"))
    assert code == 2
    assert "f.json, line 2: this is not JSON" in err
    before = given.read_bytes()
    code, _, err = run("report", str(given), "--output", str(given))
    assert code == 2
    assert "is an input; give another output" in err
    code, _, err = run("report", str(given), "--output", str(page), "--markdown", str(page))
    assert code == 2
    assert "outputs must be different files" in err
    assert run("report", str(given), "--output", "/missing/r.html")[0] == 2
    assert given.read_bytes() == before
    assert not page.exists()
