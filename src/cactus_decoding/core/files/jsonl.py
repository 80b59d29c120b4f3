"""Reads JSON and JSON Lines; every error names the file, the line and what is wrong."""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import IO, Annotated, Any, TypeVar

from pydantic import BeforeValidator, ConfigDict, TypeAdapter, ValidationError

from cactus_decoding.core.files.home import expanded

INFINITIES = {"inf": math.inf, "-inf": -math.inf}  # as `files.writing.plain_json` writes them
STRICT = ConfigDict(strict=True, extra="forbid")
"""The ``__pydantic_config__`` of a dataclass of which `read_as` takes exactly the fields, each of its own type."""
Number = Annotated[float, BeforeValidator(lambda value: INFINITIES.get(value, value) if type(value) is str else value)]
Record = TypeVar("Record")


def read_json(path: str | Path) -> Any:
    return parse_json(expanded(path).read_bytes(), path)


def parse_json(data: bytes, path: str | Path, first: int = 1) -> Any:
    """Return the JSON value in some lines of a file; messages name its path and count lines from ``first`` on."""
    try:
        return json.loads(data.decode("utf-8-sig" if first == 1 else "utf-8"))
    except UnicodeDecodeError as error:
        line, begin = _line_at(data, error.start)
        raise ValueError(f"{path}, line {first + line}: byte {error.start - begin} is not UTF-8") from None
    except json.JSONDecodeError as error:
        line = first - 1 + error.lineno
        raise ValueError(f"{path}, line {line}: this is not JSON: {error.msg} (column {error.colno})") from None
    except (ValueError, RecursionError) as error:  # an integer of too many digits, or more levels than Python takes
        raise ValueError(f"{path}, line {first}: this is not JSON: {error}") from None


def _line_at(data: bytes, place: int) -> tuple[int, int]:
    """Return how many lines end before a place, and where its own begins."""
    return data.count(b"\n", 0, place), data.rfind(b"\n", 0, place) + 1


def read_objects(path: str | Path) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Yield the objects of a file, perhaps gzipped, each with its line number and a text that says where it stands.

    Blank lines are passed over.
    """
    data = expanded(path).read_bytes()
    if data[:2] == b"\x1f\x8b":
        try:
            data = gzip.decompress(data)
        except (EOFError, OSError, zlib.error) as error:
            raise ValueError(f"{path} is not a whole gzip file: {error}") from None
    yield from objects_in(data, path)


def objects_in(data: bytes, path: str | Path) -> Iterator[tuple[int, str, dict[str, Any]]]:
    for number, raw in enumerate(data.split(b"\n"), start=1):
        if not raw.strip():
            continue
        where, value = f"{path}, line {number}", parse_json(raw, path, number)
        if not isinstance(value, dict):
            raise ValueError(f"{where}: there must be an object, but it is {raw.decode()[:40]!r}")
        yield number, where, value


def whole_lines(data: bytes) -> bytes:
    """Return what a growing file holds, without a last line that a kill cut off.

    A last line that is whole JSON is kept, also without its line end: no beginning of an object is an object.
    """
    ended = data.rfind(b"\n") + 1
    try:
        parse_json(data[ended:], "", 2)
    except ValueError:
        return data[:ended]
    return data


class GrowingFile:
    """Adds lines to an open file, of which `whole_lines` are kept.

    Nothing is written before there is something to add: only then is cut off what a kill left, or a line end added.
    """

    def __init__(self, file: IO[bytes], kept: bytes) -> None:
        self._file, self._length = file, len(kept)
        self._before = b"\n" if kept and not kept.endswith(b"\n") else b""
        self._begun = False

    def add(self, line: str) -> None:
        if not self._begun:
            self._file.truncate(self._length)
            self._file.write(self._before)
            self._begun = True
        self._file.write(line.encode())
        self._file.flush()


def text_field(value: dict[str, Any], key: str, where: str, *, numbers: bool = False) -> str:
    """Return a field that must be a text that is not blank (or, with ``numbers``, a number)."""
    if key not in value:
        raise ValueError(f"{where}: {key!r} is missing; there are {', '.join(map(repr, value)) or 'no fields'}")
    text = value[key]
    if numbers and isinstance(text, (int, float)) and not isinstance(text, bool):
        text = str(text)
    if not isinstance(text, str) or not text.strip():
        kind = "a text or a number" if numbers else "a text"
        raise ValueError(f"{where}: {key!r} must be {kind}, but is {text!r}")
    return text


def number_of(value: float | str | None) -> float:
    """Return the number that JSON holds: `INFINITIES` are texts, and null is NaN."""
    if value is None:
        return math.nan
    if isinstance(value, str) and value in INFINITIES:
        return INFINITIES[value]
    if not isinstance(value, (int, float)):
        raise ValueError(f"there must be a number, but it is {value!r}")
    return float(value)


def read_as(record: type[Record], value: Mapping[str, Any], where: str | Path) -> Record:
    """Return an object of JSON as a dataclass, a named tuple or a typed dictionary; pydantic checks its fields."""
    try:
        adapter: TypeAdapter[Record] = _adapter(record)  # type: ignore[arg-type]  # every class is hashable
        return adapter.validate_json(json.dumps(value))
    except ValidationError as error:
        found = error.errors(include_url=False)[0]
        place = "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in found["loc"]).lstrip(".")
        if isinstance(raised := found.get("ctx", {}).get("error"), ValueError):  # by a check of our own
            said = f"{place}: {raised}" if place else str(raised)
        elif found["type"] in ("missing", "unexpected_keyword_argument"):
            said = f"{place} {'is missing' if found['type'] == 'missing' else 'is not known'}"
        else:
            said = f"{place} {found['msg'].replace('Input should', 'must')}, but is {str(found['input'])[:40]!r}"
        raise ValueError(f"{where}: {said}") from None


@cache
def _adapter(record: type[Record]) -> TypeAdapter[Record]:
    return TypeAdapter(record)
