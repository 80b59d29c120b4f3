"""Files are written whole or not at all, and numbers without a bound survive the way through JSON."""

from __future__ import annotations

import json
import math
import os

import pytest

from cactus_decoding.files.jsonl import number_of
from cactus_decoding.files.writing import as_json, check_writable, part_of, replacing, write_atomically


def interrupt(path, text, *, keep=False):
    def writes():
        with replacing(path, keep=keep) as part:
            part.write_text(text)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        writes()


def test_an_interrupted_block_leaves_what_was_there(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    interrupt(path, "ne")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_what_an_interrupted_block_wrote_is_kept_where_that_is_asked_for(tmp_path):
    path = tmp_path / "file"
    for written in ("", "ne"):
        interrupt(path, written, keep=True)
        assert [found.name for found in tmp_path.iterdir()] == (["file.part"] if written else [])
    assert part_of(path).read_text() == "ne"


def test_a_link_stays_a_link_and_a_device_a_device(tmp_path):
    path, link = tmp_path / "file", tmp_path / "elsewhere" / "link"
    link.parent.mkdir()
    link.symlink_to(path)
    for text in ("new", "newer"):  # first it leads nowhere
        write_atomically(link, text)
        assert link.is_symlink()
        assert path.read_text() == text
    check_writable(link)
    os.mkfifo(tmp_path / "pipe")
    reading = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write_atomically(tmp_path / "pipe", "through")
    assert os.read(reading, 100) == b"through"
    os.close(reading)
    assert (tmp_path / "pipe").is_fifo()


def test_what_cannot_be_written_is_named_before_any_work(tmp_path):
    with pytest.raises(ValueError, match="it is a folder"):
        check_writable(tmp_path)
    with pytest.raises(ValueError, match="its folder is missing"):
        check_writable(tmp_path / "missing" / "file")
    with pytest.raises(ValueError, match="must be different files"):
        check_writable(tmp_path / "a", None, tmp_path / "b" / ".." / "a")


def test_numbers_without_a_bound_are_read_back_as_they_were():
    values = [math.inf, -math.inf, 2.5, 3]
    assert [number_of(value) for value in json.loads(as_json(values))] == values
    assert math.isnan(number_of(json.loads(as_json(math.nan))))
    assert number_of(None, absent=math.inf) == math.inf  # as files of the version before have it
    with pytest.raises(ValueError, match="must be a number"):
        number_of("infinite")
