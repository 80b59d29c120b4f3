"""Files that grow line by line are read without the line that a kill cut off."""

from __future__ import annotations

import json

import pytest

from cactus_decoding.files.jsonl import MAX_DEPTH, objects_in, parse_json, whole_lines


def test_every_cut_of_a_last_line_is_passed_over():
    data = b'{"a": 1}\n{"a": 2}\n'
    for cut in range(len(data) + 1):
        kept = [value["a"] for _, _, value in objects_in(whole_lines(data[:cut]), "file")]
        assert kept == [1, 2][: data[:cut].count(b"\n")]


def nested(depth: int) -> bytes:
    return b'{"a": ' * depth + b"1" + b"}" * depth


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"a": "\\ud83d"}', r"half of a surrogate pair \(\\ud83d\)"),
        (b'{"a": "\\ud83d\\ude00 \\uDE00"}', r"half of a surrogate pair \(\\uDE00\)"),
        (b'{"\\udfff": 1}', r"half of a surrogate pair \(\\udfff\)"),
        (nested(MAX_DEPTH + 1), "nested more than 100 deep"),
        (nested(100_000), "nested more than 100 deep"),
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
    for mistake in (b'"\\ud800"', b'"\xff"', b"oops"):
        with pytest.raises(ValueError, match=r"^data\.json, line 3: "):
            parse_json(b'{"a":\n "\\ud83d\\ude00",\n "b": ' + mistake + b"}", "data.json")


def test_whole_pairs_escaped_backslashes_and_nesting_are_read():
    for text in ("\U0001f600", "\\ud800", "é"):
        assert parse_json(json.dumps({"a": text}).encode(), "data.json") == {"a": text}
    assert parse_json(nested(MAX_DEPTH), "data.json")
