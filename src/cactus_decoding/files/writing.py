"""Writing results: all or nothing, and never a surprise after minutes of work."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any


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


def as_json(value: Any) -> str:
    """Return JSON text of a value; what is infinite or no number becomes null.

    >>> as_json({"ratio": float("inf"), "n": [1, 2.5]})
    '{"ratio": null, "n": [1, 2.5]}'
    """
    return json.dumps(_without_infinities(value), allow_nan=False)


def _without_infinities(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _without_infinities(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_infinities(each) for each in value]
    return value
