"""Whether two runs can be compared: how their answers were read, and what they were timed on."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cactus_decoding.core.files.home import expanded
from cactus_decoding.engines.llama_cpp.models.settings import parse_gguf
from cactus_decoding.lab.evaluation.runs.results import RunResult

Provenance = Mapping[str, Any]


def unlike(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Return the names of values that differ; what one of the two lacks is no difference.

    >>> unlike({"cores": 2, "threads": 1}, {"threads": 4})
    ['threads']
    """
    return [name for name, value in one.items() if name in other and other[name] != value]


def timed_on(provenance: Provenance) -> dict[str, Any]:
    """Return what a run's times depend on: the machine, and its threads and workers, or else the server's host."""
    machine = dict(provenance.get("machine") or {})
    if (server := provenance.get("server")) is not None:
        machine.pop("threads", None)
        return machine | {"server": urlsplit(server["address"]).hostname}
    return machine | dict(provenance.get("running") or {})


def check_read_alike(task: str, one: Provenance, other: Provenance) -> None:
    """Raise `ValueError` if answers to a task were read or ended in two ways; ``one`` was first."""
    before, after = (each.get("reading") or {} for each in (one, other))
    different = unlike(before, after)
    if "stop" in different:
        raise ValueError(
            f"answers of task {task!r} that end at the stop strings {before['stop']} do not go with answers that end "
            f"at {after['stop']}: give another --output"
        )
    if "by" in different:
        raise ValueError(
            f"answers of task {task!r} that were read by {before['by']} do not go with answers that are read by "
            f"{after['by']}: score the older file anew with --rescore, or give another --output"
        )


def check_comparable(results: list[RunResult]) -> None:
    """Raise `ValueError` if answers of runs that are compared were read or ended in two ways."""
    known: dict[tuple[object, ...], dict[str, Any]] = {}
    for result in results:
        first = known.setdefault(result.config.comparable, {"reading": {}})
        check_read_alike(result.config.task, first, result.provenance)
        first["reading"] |= result.provenance.get("reading") or {}


def model_files(name: str) -> list[tuple[str, int, int]]:
    """Return name, size and time of change of a local model's files; nothing for a model of another kind."""
    gguf = parse_gguf(name)
    path = expanded(gguf.path if gguf is not None else name)
    found = []
    with suppress(OSError, ValueError):  # such as a name that is too long for a path
        for file in _files(path) if name else ():
            known = file.stat()
            found.append((file.name, known.st_size, known.st_mtime_ns))
    return sorted(found)


def _files(path: Path) -> list[Path]:
    return [each for each in path.iterdir() if each.is_file()] if path.is_dir() else [path]
