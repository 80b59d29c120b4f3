"""Reading whole files: regular ones, and pipes up to a limit; never a device, which may have no end."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import IO

MOST = 2**28
"""This many bytes are read of what is no regular file, such as a shell's process substitution."""


def read_bytes(path: str | Path) -> bytes:
    """Return what a file holds.

    Raises `OSError` if it cannot be read; `ValueError` for a device, a named pipe (it may wait for its writer for ever)
    or a socket, and for a pipe with more than `MOST` bytes.

    Example:
        >>> read_bytes("/dev/zero")
        Traceback (most recent call last):
        ValueError: cannot read '/dev/zero': it is a device, which may have no end; give a regular file
    """
    path = Path(path).expanduser()
    mode = path.stat().st_mode
    if stat.S_ISFIFO(mode) and not os.path.realpath(path).startswith(("/dev/", "/proc/")):
        raise ValueError(f"cannot read {str(path)!r}: it is a named pipe; give a regular file")
    if stat.S_ISSOCK(mode):
        raise ValueError(f"cannot read {str(path)!r}: it is a socket; give a regular file")
    if _is_endless(mode, os.stat(path).st_rdev) and not _is_terminal(path):
        raise ValueError(f"cannot read {str(path)!r}: it is a device, which may have no end; give a regular file")
    with path.open("rb") as file:
        return read_all(file, repr(str(path)))


def read_all(file: IO[bytes], name: str) -> bytes:
    """Return what is left of an open file, such as standard input.

    Raises `ValueError` for a device other than a terminal, and for a pipe with more than `MOST` bytes.
    """
    try:
        found = os.fstat(file.fileno())
    except OSError:  # it is no file of the system's
        return file.read()
    if stat.S_ISREG(found.st_mode):
        return file.read()
    if _is_endless(found.st_mode, found.st_rdev) and not os.isatty(file.fileno()):
        raise ValueError(f"cannot read {name}: it is a device, which may have no end; give a regular file")
    data = file.read(MOST + 1)
    if len(data) > MOST:
        raise ValueError(f"cannot read {name}: it has more than {MOST // 2**20} MiB; give a regular file")
    return data


def _is_endless(mode: int, device: int) -> bool:
    """Say whether this is a device other than the null device, which is merely empty."""
    return (stat.S_ISCHR(mode) or stat.S_ISBLK(mode)) and device != os.stat(os.devnull).st_rdev


def _is_terminal(path: Path) -> bool:
    return os.path.realpath(path).startswith(("/dev/tty", "/dev/pts/"))
