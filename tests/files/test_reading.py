"""Files and pipes are read to their end, and what has none is refused."""

from __future__ import annotations

import io
import os
import socket
import subprocess
import sys

import pytest

from cactus_decoding.files import reading
from cactus_decoding.files.reading import read_all, read_bytes

CODE = "import sys; from cactus_decoding.files.reading import read_bytes; print(len(read_bytes(sys.argv[1])))"


def test_files_links_and_what_a_shell_substitutes_are_read(tmp_path):
    (tmp_path / "file").write_bytes(b"text")
    (tmp_path / "link").symlink_to("file")
    assert read_bytes(tmp_path / "file") == read_bytes(tmp_path / "link") == b"text"
    assert read_bytes("/dev/null") == b""
    script = f'{sys.executable} -c "{CODE}" <(printf hello)'
    assert subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout == "5\n"
    command = [sys.executable, "-c", CODE, "/dev/stdin"]
    assert subprocess.run(command, input="hello", capture_output=True, text=True, check=True).stdout == "5\n"


def test_what_has_no_end_is_refused(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    bound = socket.socket(socket.AF_UNIX)
    bound.bind(str(tmp_path / "socket"))
    bound.close()
    for name, words in (("zero", "a device"), ("/dev/urandom", "a device"), ("pipe", "a named pipe"),
                        ("socket", "a socket")):  # fmt: skip
        with pytest.raises(ValueError, match=f"it is {words}"):
            read_bytes(tmp_path / name)
    with open("/dev/zero", "rb") as zero, pytest.raises(ValueError, match="cannot read standard input: it is a device"):
        read_all(zero, "standard input")
    with pytest.raises(IsADirectoryError):
        read_bytes(tmp_path)
    monkeypatch.setattr(reading, "MOST", 2**20)
    with subprocess.Popen(["yes"], stdout=subprocess.PIPE) as endless:
        with pytest.raises(ValueError, match="has more than 1 MiB"):
            read_all(endless.stdout, "standard input")
        endless.kill()
    assert read_all(io.BytesIO(b"no file of the system's"), "it") == b"no file of the system's"
