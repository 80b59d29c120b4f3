"""Files that grow line by line are read without the line that a kill cut off."""

from __future__ import annotations

from cactus_decoding.files.jsonl import objects_in, whole_lines


def test_every_cut_of_a_last_line_is_passed_over():
    data = b'{"a": 1}\n{"a": 2}\n'
    for cut in range(len(data) + 1):
        kept = [value["a"] for _, _, value in objects_in(whole_lines(data[:cut]), "file")]
        assert kept == [1, 2][: data[:cut].count(b"\n")]
