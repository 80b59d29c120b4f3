"""Reads JSON Lines; every error names the file, the line and what is wrong."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cactus_decoding.files.reading import read_bytes

INFINITIES = {"inf": math.inf, "-inf": -math.inf}
"""As `files.writing.plain` writes them."""


def read_objects(path: str | Path) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Yield the objects of a file, each with its line number and a text that says where it stands; blank lines pass.

    Raises:
        OSError: if the file cannot be read.
        ValueError: for a device, and for a line that is not UTF-8, not JSON, or no object.
    """
    yield from objects_in(read_bytes(path), path)


def objects_in(data: bytes, path: str | Path) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Yield the objects of a file that was read already; see `read_objects`."""
    for number, raw in enumerate(data.split(b"\n"), start=1):
        if not raw.strip():
            continue
        where = f"{path}, line {number}"
        try:
            value = json.loads(raw.decode("utf-8-sig" if number == 1 else "utf-8"))
        except UnicodeDecodeError as error:
            raise ValueError(f"{where}: byte {error.start} is not UTF-8") from None
        except ValueError as error:
            raise ValueError(f"{where}: this is not JSON: {error}") from None
        if not isinstance(value, dict):
            raise ValueError(f"{where}: there must be an object, but it is {raw.decode()[:40]!r}")
        yield number, where, value


def whole_lines(data: bytes) -> bytes:
    r"""Return what a file that grows line by line holds, without a last line that a kill cut off.

    >>> whole_lines(b'{"a": 1}\n{"a"')
    b'{"a": 1}\n'
    """
    return data[: data.rfind(b"\n") + 1]


def text_of(value: dict[str, Any], key: str, where: str, *, numbers: bool = False) -> str:
    """Return a field that must be a text which is not blank (or, with ``numbers``, a number).

    Example:
        >>> text_of({"answer": 7}, "answer", "a.jsonl, line 3", numbers=True)
        '7'
    """
    if key not in value:
        raise ValueError(f"{where}: {key!r} is missing; there are {', '.join(map(repr, value)) or 'no fields'}")
    text = value[key]
    if numbers and isinstance(text, (int, float)) and not isinstance(text, bool):
        text = str(text)
    if not isinstance(text, str) or not text.strip():
        kind = "a text or a number" if numbers else "a text"
        raise ValueError(f"{where}: {key!r} must be {kind}, but is {text!r}")
    return text


def number_of(value: float | str | None, absent: float = math.nan) -> float:
    """Return the number that JSON holds, and ``absent`` for null: what is not known, or in older files infinite.

    Raises:
        ValueError: for what is no number.

    Example:
        >>> number_of("-inf"), number_of(2), number_of(None)
        (-inf, 2.0, nan)
    """
    if value is None:
        return absent
    if isinstance(value, str) and value in INFINITIES:
        return INFINITIES[value]
    if not isinstance(value, (int, float)):
        raise ValueError(f"there must be a number, but it is {value!r}")
    return float(value)
