"""Files that grow line by line are read without the line that a kill cut off."""

from __future__ import annotations

import json

import pytest

from cactus_decoding.core.files.jsonl import objects_in, parse_json, read_json, whole_lines


def test_every_cut_of_a_last_line_is_passed_over():
    data = b'{"a": 1}\n{"a": 2}\n'
    for cut in range(len(data) + 1):
        kept = [value["a"] for _, _, value in objects_in(whole_lines(data[:cut]), "file")]
        assert kept == [1, 2][: data[:cut].count(b"\n")]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"a": ' * 100_000 + b"1" + b"}" * 100_000, "this is not JSON: maximum recursion depth exceeded"),
        (b'{"a": ' + b"1" * 5000 + b"}", "this is not JSON: Exceeds the limit"),
        (b'{"a": }', r"this is not JSON: Expecting value \(column 7\)"),
        (b'{"a": "\xff"}', "byte 7 is not UTF-8"),
        (b"[1]", "there must be an object"),
    ],
)
def test_what_cannot_be_read_is_said_in_a_line_with_file_and_line(line, said):
    with pytest.raises(ValueError, match=f"^data.jsonl, line 3: .*{said}") as raised:
        list(objects_in(b'{"a": 1}\n\n' + line + b"\n", "data.jsonl"))
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 200


def test_the_line_of_a_whole_file_is_that_of_the_mistake():
    for mistake in (b'"\xff"', b"oops"):
        with pytest.raises(ValueError, match=r"^data\.json, line 3: "):
            parse_json(b'{"a":\n "\\ud83d\\ude00",\n "b": ' + mistake + b"}", "data.json")


def test_what_json_writes_is_read(tmp_path):
    for text in ("\U0001f600", "\\ud800", "é"):
        (tmp_path / "data.json").write_text(json.dumps({"a": text}))
        assert read_json(tmp_path / "data.json") == {"a": text}
    with pytest.raises(FileNotFoundError):
        read_json(tmp_path / "none.json")
