"""Writing results: all or nothing, and never a surprise after minutes of work."""

from __future__ import annotations

import os
from pathlib import Path


def check_writable(*paths: Path | None) -> None:
    """Raise `ValueError` for a path that cannot be written, before any work."""
    given = [path for path in paths if path is not None]
    for path in given:
        if not os.access(path.parent, os.W_OK):
            raise ValueError(f"cannot write {str(path)!r}: its folder is missing or not writable")
        if path.is_dir():
            raise ValueError(f"cannot write {str(path)!r}: it is a folder")
    if len({path.resolve() for path in given}) != len(given):
        raise ValueError(f"outputs must be different files, but are {', '.join(map(str, given))}")


def write_atomically(path: Path, text: str) -> None:
    """Replace a file in one go, so that a kill leaves the old one or the new one."""
    scratch = path.with_name(path.name + ".part")
    try:
        scratch.write_text(text, encoding="utf-8")
        os.replace(scratch, path)
    finally:
        scratch.unlink(missing_ok=True)
