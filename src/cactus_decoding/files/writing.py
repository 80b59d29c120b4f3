"""Writing files: all or nothing, and never a surprise after minutes of work."""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any


def check_writable(*outputs: Path | None, inputs: Iterable[Path | None] = ()) -> None:
    """Raise `ValueError` for a path that cannot be written, before any work.

    Outputs are regular files that exist or are made in a folder that exists; symbolic links are followed. Devices and
    pipes are refused, and so are the file that this command's own output goes to and the inputs; None is passed over.
    """
    files = [(path, file_behind(path)) for path in outputs if path is not None]
    for path, file in files:
        for given in inputs:
            if given is not None and _is_same(file, given):
                raise ValueError(f"{str(path)!r} is an input; give another output")
    for (path, file), (other_path, other) in combinations(files, 2):
        if _is_same(file, other) or file in (part_of(other), part_of(file)) or other == part_of(file):
            raise ValueError(f"outputs must be different files, but are {path}, {other_path}")
    for path, file in files:
        try:
            with _held(file, keep=True):  # what an interrupted run has left there stays
                pass
        except OSError as error:
            folder = "its folder is missing" if not file.parent.is_dir() else error.strerror or str(error)
            raise ValueError(f"cannot write {str(path)!r}: {folder}") from None


def check_folder(path: Path) -> None:
    """Raise `ValueError` where a folder cannot be written to, or cannot be made, before any work."""
    existing = path
    while not os.path.lexists(existing):
        existing = existing.parent
    if not existing.is_dir():
        raise ValueError(f"cannot write to {str(path)!r}: {str(existing)!r} is no folder")
    try:
        with TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise ValueError(f"cannot write to {str(path)!r}: {error.strerror or error}") from None


def file_behind(path: Path) -> Path:
    """Return the regular file that a path leads to, through links; it need not exist.

    Raises `ValueError` for a folder, a device, a pipe, a circle of links, a file that may not be changed, or one that
    this command's own output goes to.

    Example:
        >>> file_behind(Path("/dev/null"))
        Traceback (most recent call last):
        ValueError: cannot write '/dev/null': it is a device; give a regular file, or leave out what you do not need
    """
    refused = f"cannot write {str(path)!r}: "
    if str(path) == "-":  # which elsewhere means standard input or output
        raise ValueError(f"{refused}it would be a file of that name; give another")
    try:
        found = path.stat()
    except FileNotFoundError:
        return Path(os.path.realpath(path))
    except OSError as error:
        raise ValueError(refused + (error.strerror or str(error))) from None
    if stat.S_ISDIR(found.st_mode):
        raise ValueError(f"{refused}it is a folder")
    if not stat.S_ISREG(found.st_mode):
        kind = "a device" if stat.S_ISCHR(found.st_mode) or stat.S_ISBLK(found.st_mode) else "a pipe"
        raise ValueError(f"{refused}it is {kind}; give a regular file, or leave out what you do not need")
    if any(_is_open(number, found) for number in (1, 2)):
        raise ValueError(f"{refused}this command's own output goes there; give another file")
    if not os.access(path, os.W_OK):
        raise ValueError(f"{refused}it is read-only")
    return Path(os.path.realpath(path))


@contextmanager
def replacing(path: Path, *, keep: bool = False) -> Iterator[Path]:
    """Yield where to write; what stands there takes the path's place when the block is done, so all or nothing.

    A symbolic link stays, and leads to the new file, which may be read by whom the old one could. With ``keep`` a block
    that is interrupted leaves what it has written at `part_of` the path.

    Raises `OSError` where it cannot be written; names the path; `ValueError` for what is no regular file, or is being
    written by another process.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     with replacing(Path(folder) / "a.txt") as part:
        ...         _ = part.write_text("new")
        ...     [path.name for path in Path(folder).iterdir()]
        ['a.txt']
    """
    file = file_behind(path)
    try:
        with _held(file, keep=keep) as part:
            os.truncate(part, 0)
            yield part
            if file.exists():
                os.chmod(part, stat.S_IMODE(file.stat().st_mode))
            os.replace(part, file)
    except OSError as error:
        if error.errno is not None and error.filename in (None, str(part_of(file))):  # such as a disk that is full
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


def part_of(path: Path) -> Path:
    """Return where a file is while it grows.

    The name is one that nobody gives to a file of their own, because it is overwritten.

    >>> part_of(Path("trace.jsonl")).name
    'trace.jsonl.cactus-part'
    """
    path = Path(os.path.realpath(path)) if path.is_symlink() else path
    return path.with_name(path.name + ".cactus-part")


@contextmanager
def _held(file: Path, *, keep: bool = False) -> Iterator[Path]:
    """Make the part of a file for this process alone, and remove it in the end if it is still there."""
    part, flags = part_of(file), os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    while True:
        opened = os.open(part, flags, 0o666)
        try:
            if not stat.S_ISREG(os.fstat(opened).st_mode):
                raise ValueError(f"{str(part)!r} is in the way: a file is written there first")
            lock(opened, file)
            if part.exists() and os.path.samestat(os.fstat(opened), part.stat()):
                break
        except BaseException:
            os.close(opened)
            raise
        os.close(opened)  # another process has finished in the meantime
    try:
        yield part
    finally:
        # whoever waits for the lock finds another file here, or none
        if part.exists() and os.path.samestat(os.fstat(opened), part.stat()) and not (keep and part.stat().st_size):
            part.unlink()
        os.close(opened)


def lock(opened: int, path: Path) -> None:
    """Hold an open file until it is closed; raise `ValueError` where another process holds it."""
    try:
        import fcntl
    except ImportError:  # no such locks on this system
        return
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ValueError(f"another process is writing {str(path)!r}; give another file, or wait for it") from None
    except OSError:  # nor on this file system
        return


def write_atomically(path: Path, text: str) -> None:
    """Replace a file in one go, so that a kill leaves the old one or the new one."""
    with replacing(path) as part:
        part.write_text(text, encoding="utf-8")


def _is_same(file: Path, other: Path) -> bool:
    """Say whether two paths lead to one file, also by a hard link."""
    if file.exists() and other.exists():
        return os.path.samefile(file, other)
    return os.path.realpath(file) == os.path.realpath(other)


def _is_open(number: int, found: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.fstat(number), found)
    except OSError:
        return False


def as_json(value: Any, indent: int | None = None) -> str:
    """Return JSON text of a value; see `plain`.

    >>> as_json({"ratio": float("inf"), "n": (1, float("nan"))})
    '{"ratio": "inf", "n": [1, null]}'
    """
    return json.dumps(plain(value), indent=indent, allow_nan=False)


def plain(value: Any) -> Any:
    """Return a value as JSON knows it: infinite numbers become the texts ``inf`` and ``-inf``, NaN null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else "inf" if value > 0 else "-inf"
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return value
