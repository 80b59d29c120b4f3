"""Writing files: all or nothing, and never a surprise after minutes of work."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def check_writable(*paths: Path | None) -> None:
    """Raise `ValueError` for a path that cannot be written, before any work."""
    given = [path for path in paths if path is not None]
    for path in given:
        if path.is_dir():
            raise ValueError(f"cannot write {str(path)!r}: it is a folder")
        if not os.access(path.resolve().parent if _is_replaced(path) else path, os.W_OK):
            raise ValueError(f"cannot write {str(path)!r}: its folder is missing or not writable")
    if len({path.resolve() for path in given}) != len(given):
        raise ValueError(f"outputs must be different files, but are {', '.join(map(str, given))}")


@contextmanager
def replacing(path: Path, *, keep: bool = False) -> Iterator[Path]:
    """Yield where to write; what stands there takes the path's place when the block is done, so all or nothing.

    Args:
        path: what is replaced. A symbolic link stays, and leads to the new file; a device or a pipe is written itself.
        keep: whether a block that is interrupted leaves what it has written at `part_of` the path.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     with replacing(Path(folder) / "a.txt") as part:
        ...         _ = part.write_text("new")
        ...     [path.name for path in Path(folder).iterdir()]
        ['a.txt']
    """
    if not _is_replaced(path):
        yield path
        return
    part = part_of(path)
    try:
        yield part
        os.replace(part, path.resolve())
    finally:
        if part.exists() and not (keep and part.stat().st_size):
            part.unlink()


def part_of(path: Path) -> Path:
    """Return where a file is while it grows.

    >>> part_of(Path("trace.jsonl")).name
    'trace.jsonl.part'
    """
    path = path.resolve() if path.is_symlink() else path
    return path.with_name(path.name + ".part")


def write_atomically(path: Path, text: str) -> None:
    """Replace a file in one go, so that a kill leaves the old one or the new one."""
    with replacing(path) as part:
        part.write_text(text, encoding="utf-8")


def _is_replaced(path: Path) -> bool:
    """Say whether a file is, or would be, at a path: nothing else may be put out of its place."""
    return path.is_file() or not path.exists()


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
