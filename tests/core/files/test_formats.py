"""Files of several kinds: JSON Lines, tensors with a header, and where results come from."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import save_file

from cactus_decoding.core.files.jsonl import GrowingFile, objects_in, parse_json, read_json, whole_lines
from cactus_decoding.core.files.provenance import commit, provenance
from cactus_decoding.core.files.writing import Format, read_tensors, write_tensors


def test_every_cut_of_a_last_line_is_passed_over_and_a_whole_one_without_its_end_is_not():
    data = b'{"a": 1}\n{"a": {"b": "}"}}\n'
    for cut in range(len(data) + 1):
        kept = [value["a"] for _, _, value in objects_in(whole_lines(data[:cut]), "file")]
        assert kept == [1, {"b": "}"}][: sum(cut >= end for end in (data.find(b"\n"), len(data) - 1))]


def test_a_growing_file_is_as_it_was_until_something_is_added(tmp_path):
    path, data, more = tmp_path / "file", b'{"a": 1}\n{"a": 2}\n', '{"a": 3}\n'
    for cut in range(len(data) + 1):
        path.write_bytes(data[:cut])
        whole = (data[:cut] + b"\n").count(b"}\n")
        with path.open("a+b") as file:
            file.seek(0)
            lines = GrowingFile(file, whole_lines(file.read()))
            assert path.read_bytes() == data[:cut]
            for _ in range(2):
                lines.add(more)
        assert path.read_bytes() == b"".join(data.splitlines(keepends=True)[:whole]) + 2 * more.encode()


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


FORM = Format("sums", schema=2, described="of sums")


def test_tensors_and_what_is_told_about_them_come_back(tmp_path):
    path, tensor = tmp_path / "a", torch.arange(6.0).view(2, 3).T
    write_tensors(path, FORM, {"x": tensor}, {"of": [1, 2]})
    tensors, about = read_tensors(path, FORM)
    assert torch.equal(tensors["x"], tensor)
    assert about == {"schema": 2, "of": [1, 2]}


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ({}, "/a: this is not a file of sums"),
        ({"others": "{}"}, "/a: this is not a file of sums"),
        ({"sums": "{"}, "/a: this is not a file of sums"),
        ({"sums": "[2]"}, "/a: this is not a file of sums"),
        ({"sums": "{}"}, "/a: schema is None, but this version reads schema 2"),
        ({"sums": '{"schema": 1}'}, "/a: schema is 1, but this version reads schema 2"),
    ],
)
def test_another_header_is_refused(tmp_path, header, said):
    save_file({"x": torch.zeros(1)}, tmp_path / "a", header)
    with pytest.raises(ValueError, match=said):
        read_tensors(tmp_path / "a", FORM)


def test_provenance():
    record = provenance({"seed": 1})
    assert set(record) == {"arguments", "commit", "versions", "machine", "date"}
    assert json.loads(json.dumps(record)) == record
    assert commit() is None or len(commit().removesuffix("-dirty")) == 40
