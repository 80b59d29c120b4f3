"""Result files: JSON Lines, one line a finished run, which survive a kill at any moment."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from cactus_decoding.evaluation.run_config import RunConfig
from cactus_decoding.files.jsonl import number_of, parse_json, whole_lines
from cactus_decoding.files.reading import read_bytes
from cactus_decoding.files.writing import as_json, file_behind, lock

SCHEMA = 1
COUNTS = ("generated", "steps", "drafted", "accepted", "relaxed", "recovered", "bonus")
AUDITED = ("metered", "nats", "tv", "max_log_ratio")
COLUMNS = ("id", "group", "right", "finish_reason", *COUNTS, "seconds")
_BEGINNING = json.dumps({"schema": SCHEMA, "cell": {}})[:-2]


@dataclass(frozen=True, eq=False)
class RunResult:
    """A finished run.

    Attributes:
        config: what it is about.
        answers: columns, one entry a problem; the audited ones are absent where nobody audited, ``text`` in files of
            version 0.1, and ``token_ids`` where nobody asked for them.
        provenance: commit, versions, machine, date, arguments.
    """

    config: RunConfig
    answers: Mapping[str, list[Any]]
    provenance: Mapping[str, Any]

    def column(self, name: str) -> NDArray[np.float64]:
        """Return a column of numbers; what is not known is NaN, and a cost without a bound infinite."""
        return self._numbers[name]

    @property
    def scored(self) -> bool:
        """Whether every answer is right or wrong."""
        return not bool(np.isnan(self.column("right")).any())

    @property
    def audited(self) -> bool:
        """Whether the exact costs are known."""
        return all(name in self.answers for name in AUDITED)

    @cached_property
    def _numbers(self) -> dict[str, NDArray[np.float64]]:
        text = ("id", "group", "finish_reason", "text", "token_ids")
        return {  # the infinite costs of older files are null
            name: np.array([number_of(value, math.inf if name in AUDITED else math.nan) for value in values])
            for name, values in self.answers.items()
            if name not in text
        }

    def line(self) -> str:
        """Return the line of a result file."""
        value = {
            "schema": SCHEMA,
            "cell": self.config.as_dict(),
            "answers": self.answers,
            "provenance": self.provenance,
        }
        return as_json(value) + "\n"


def read_results(path: str | Path) -> list[RunResult]:
    """Return the finished runs of a result file; a last line that a kill cut off is passed over.

    Raises:
        OSError: if the file cannot be read.
        ValueError: for a line that is not a run's; says which.
    """
    return _parse(read_bytes(path), path)[0]


def _parse(data: bytes, path: str | Path) -> tuple[list[RunResult], int]:
    """Return the finished runs, and how many bytes they take."""
    results, whole = [], whole_lines(data)
    for number, line in enumerate(whole.splitlines(), start=1):
        results.append(_parse_line(parse_json(line, path, number), f"{path}, line {number}"))
    rest = data[len(whole) :]
    if rest and not (_BEGINNING.encode().startswith(rest) or rest.startswith(_BEGINNING.encode())):
        raise ValueError(f"{path}, line {len(results) + 1}: this is not a result of cactus eval")
    return results, len(whole)


def _parse_line(value: Any, where: str) -> RunResult:
    if not isinstance(value, dict) or "schema" not in value or "cell" not in value:
        raise ValueError(f"{where}: this is not a result of cactus eval")
    if value["schema"] != SCHEMA:
        raise ValueError(f"{where}: schema is {value['schema']!r}, but this version reads schema {SCHEMA}")
    try:
        result = RunResult(RunConfig.from_dict(value["cell"]), value["answers"], value["provenance"])
        lengths = {name: len(column) for name, column in result.answers.items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{where}: this is not a result of cactus eval: {error}") from None
    missing = [name for name in COLUMNS if name not in lengths]
    if missing or set(lengths.values()) != {result.config.problems}:
        raise ValueError(
            f"{where}: the answers must have {result.config.problems} entries in each of the columns "
            f"{', '.join(COLUMNS)}, but have {lengths}"
        )
    return result


class ResultFile:
    """A result file that is being written: what is in it, and a way to add to it.

    Attributes:
        path: where it is.
        results: its finished runs.
    """

    def __init__(self, path: Path, results: list[RunResult], file: IO[bytes]) -> None:
        self.path, self.results = path, results
        self._file = file

    def append(self, result: RunResult) -> None:
        """Add a finished run; it is on the disk when this returns."""
        self._file.write(result.line().encode())
        self._file.flush()
        os.fsync(self._file.fileno())
        self.results.append(result)


@contextmanager
def opened(path: Path) -> Iterator[ResultFile]:
    """Open a result file to add to it, make it where there is none, and cut off what a kill left of a line.

    Raises:
        OSError: if it cannot be written.
        ValueError: if it is something else, or another process is writing it; it is then left as it is.
    """
    file_path = file_behind(path)
    is_new = not file_path.exists()
    with file_path.open("a+b") as file:
        lock(file.fileno(), path)
        file.seek(0)
        results, kept = _parse(file.read(), path)
        file.truncate(kept)
        try:
            yield ResultFile(path, results, file)
        except (TypeError, ValueError):
            if is_new and not os.fstat(file.fileno()).st_size:  # a mistake leaves nothing behind
                file_path.unlink(missing_ok=True)
            raise
