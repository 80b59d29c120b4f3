"""The result file of `cactus frontier`, checked when it is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cactus_decoding.files.jsonl import number_of, parse_json
from cactus_decoding.files.reading import read_bytes

SCHEMA, KIND = 1, "frontier"


def read_frontier(path: str | Path) -> dict[str, Any]:
    """Return what a result file of `cactus frontier` holds.

    Raises:
        OSError: if it cannot be read.
        ValueError: if it is something else, naming file and line.
    """
    value = parse_json(read_bytes(path), path)
    if not isinstance(value, dict) or value.get("kind") != KIND:
        raise ValueError(f"{path}: this is not a result of cactus frontier")
    if value.get("schema") != SCHEMA:
        raise ValueError(f"{path}: schema is {value.get('schema')!r}, but this version reads schema {SCHEMA}")
    missing = [name for name in ("settings", "visited", "problems", "points", "provenance") if name not in value]
    if missing:
        raise ValueError(f"{path}: the result of cactus frontier lacks {', '.join(missing)}")
    for number, point in enumerate(value["points"]):
        if not _is_point(point):
            raise ValueError(f"{path}: point {number} is not a point of a frontier")
    if [point["family"] for point in value["points"][:2]] != ["lossless", "limit"]:
        raise ValueError(f"{path}: the first two points must be the lossless one and the limit")
    return value


def _is_point(point: object) -> bool:
    if not isinstance(point, dict) or not all(isinstance(point.get(name), str) for name in ("rule", "family")):
        return False
    if not isinstance(point.get("protect", ""), str):  # files of version 0.1, and what protects nothing, lack it
        return False
    try:
        numbers = [[number_of(each) for each in point[name]] for name in ("acceptance", "kl", "tv")]
    except (KeyError, TypeError, ValueError):
        return False
    return all(len(interval) == 3 for interval in numbers)
