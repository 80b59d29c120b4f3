"""Files are written whole or not at all, and numbers without a bound survive the way through JSON."""

from __future__ import annotations

import json
import math
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from cactus_decoding.core.files.jsonl import number_of
from cactus_decoding.core.files.writing import (
    as_json,
    check_folder,
    check_writable,
    part_path,
    replacing,
    write_atomically,
)


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
    interrupt(path, "ne", keep=True)
    assert [found.name for found in tmp_path.iterdir()] == ["file.cactus-part"]
    assert part_path(path).read_text() == "ne"


def test_a_link_stays_a_link_and_its_target_keeps_who_may_read_it(tmp_path):
    path, link = tmp_path / "file", tmp_path / "elsewhere" / "link"
    link.parent.mkdir()
    link.symlink_to(path)
    for text in ("new", "newer"):  # first it leads nowhere
        check_writable(link)
        write_atomically(link, text)
        assert link.is_symlink()
        assert path.read_text() == text
        path.chmod(0o600)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [found.name for found in tmp_path.iterdir() if found.is_file()] == ["file"]


@pytest.fixture
def places(tmp_path):
    """Return what stands at a path and is no place for a file, by what is said of it."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("kept")
    for name, target in {"to_folder": "folder", "a": "b", "b": "a", "nowhere": "missing/file"}.items():
        (tmp_path / name).symlink_to(target)
    return {
        "folder": "it is a folder",
        "to_folder": "it is a folder",
        "a": "Too many levels of symbolic links",
        "nowhere": "its folder is missing",
        "missing/file": "its folder is missing",
        "file/below": "Not a directory",
        "x" * 252: "File name too long",  # with its ending while it grows
        "/proc/cactus": "cannot write",  # a file system that takes no files
    }


def test_what_is_no_place_for_a_file_is_refused_before_any_work_and_left_alone(tmp_path, places):
    before = sorted(tmp_path.iterdir())
    for name, words in places.items():
        with pytest.raises(ValueError, match=words) as raised:
            check_writable(tmp_path / name)
        assert name in str(raised.value)
    assert sorted(tmp_path.iterdir()) == before
    assert (tmp_path / "file").read_text() == "kept"


def test_what_is_no_regular_file_is_written_as_it_is(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    for name in ("pipe", "link"):
        reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
        check_writable(tmp_path / name)
        write_atomically(tmp_path / name, "text")
        assert os.read(reader, 10) == b"text"
        os.close(reader)
    assert (tmp_path / "pipe").is_fifo()
    assert len(list(tmp_path.iterdir())) == 2
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"):
        write_atomically(Path("/dev/full"), "text")


def test_outputs_are_different_files_and_no_inputs(tmp_path):
    path, hard = tmp_path / "a", tmp_path / "hard"
    with pytest.raises(ValueError, match="must be different files"):
        check_writable(path, None, tmp_path / "b" / ".." / "a")
    path.write_text("kept")
    hard.hardlink_to(path)
    (tmp_path / "link").symlink_to(path)
    for same in (path, hard, tmp_path / "link"):
        with pytest.raises(ValueError, match="is an input; give another output"):
            check_writable(same, inputs=[None, path])
    assert path.read_text() == "kept"


def test_two_that_write_one_file_do_not_mix(tmp_path):
    path = tmp_path / "file"
    with replacing(path) as part:
        part.write_text("first")
        check_writable(path)
        write_atomically(path, "second")
        assert path.read_text() == "second"
    assert path.read_text() == "first"
    assert list(tmp_path.iterdir()) == [path]


def test_a_check_leaves_what_an_interrupted_run_wrote(tmp_path):
    interrupt(tmp_path / "file", "ne", keep=True)
    check_writable(tmp_path / "file")
    assert part_path(tmp_path / "file").read_text() == "ne"


def test_a_full_disk_leaves_the_old_file_and_is_named(tmp_path):
    (tmp_path / "file").write_text("old")
    code = """
import resource, signal, sys
from pathlib import Path
from cactus_decoding.core.files.writing import write_atomically
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
write_atomically(Path(sys.argv[1]), "x" * 100_000)
"""
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "file"], stderr=subprocess.PIPE, text=True)
    assert f"File too large: '{tmp_path / 'file'}'" in done.stderr
    assert (tmp_path / "file").read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1


def test_a_folder_that_cannot_be_written_to_is_refused(tmp_path, places):
    check_folder(tmp_path / "new" / "newer")
    check_folder(tmp_path / "to_folder")
    assert not (tmp_path / "new").exists()
    for name in ("file", "a", "nowhere", "file/below", "/proc/cactus"):
        with pytest.raises(ValueError, match="cannot write to"):
            check_folder(tmp_path / name)


def test_numbers_without_a_bound_are_read_back_as_they_were():
    values = [math.inf, -math.inf, 2.5, 3]
    assert [number_of(value) for value in json.loads(as_json(values))] == values
    assert math.isnan(number_of(json.loads(as_json(math.nan))))
    with pytest.raises(ValueError, match="must be a number"):
        number_of("infinite")
