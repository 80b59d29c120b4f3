"""Result files: JSON Lines, one line per finished run, and beside them a journal of unfinished runs."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from cactus_decoding.core.files.home import expanded
from cactus_decoding.core.files.jsonl import GrowingFile, number_of, objects_in, parse_json, whole_lines
from cactus_decoding.core.files.writing import as_json, lock, write_atomically
from cactus_decoding.lab.evaluation.run_config import RunConfig

RESULT_SCHEMA = 1
COUNTS = ("generated", "steps", "drafted", "accepted", "relaxed", "recovered", "bonus")
AUDITED = ("metered", "nats", "tv", "max_log_ratio")
ANSWER_COLUMNS = ("id", "group", "right", "finish_reason", *COUNTS, "seconds")
_BEGINNING = json.dumps({"schema": RESULT_SCHEMA, "cell": {}})[:-2]


@dataclass(frozen=True, eq=False)
class RunResult:
    """A finished run.

    ``answers`` are columns with one entry per problem. The audited columns are absent if nothing was audited, ``text``
    and ``token_ids`` if they were not kept.
    """

    config: RunConfig
    answers: Mapping[str, list[Any]]
    provenance: Mapping[str, Any]

    def column(self, name: str) -> NDArray[np.float64]:
        """Return a column of numbers; an unknown one is NaN, and an unbounded cost infinite."""
        return self._numbers[name]

    @property
    def scored(self) -> bool:
        return not bool(np.isnan(self.column("right")).any())

    @property
    def audited(self) -> bool:
        return all(name in self.answers for name in AUDITED)

    @cached_property
    def _numbers(self) -> dict[str, NDArray[np.float64]]:
        text = ("id", "group", "finish_reason", "text", "turns", "token_ids")
        return {
            name: np.array([number_of(value) for value in values])
            for name, values in self.answers.items()
            if name not in text
        }

    def line(self) -> str:
        value = {
            "schema": RESULT_SCHEMA,
            "cell": self.config.as_dict(),
            "answers": self.answers,
            "provenance": self.provenance,
        }
        return as_json(value) + "\n"


def read_results(path: str | Path) -> list[RunResult]:
    """Return the finished runs of a result file; a last line that a kill cut off is skipped."""
    return _parse(expanded(path).read_bytes(), path)[0]


def _parse(data: bytes, path: str | Path) -> tuple[list[RunResult], bytes]:
    """Return the results, and the lines that hold them."""
    results, whole = [], whole_lines(data)
    for number, line in enumerate(whole.splitlines(), start=1):
        results.append(_parse_line(parse_json(line, path, number), f"{path}, line {number}"))
    rest = data[len(whole) :]
    if rest and not (_BEGINNING.encode().startswith(rest) or rest.startswith(_BEGINNING.encode())):
        raise ValueError(f"{path}, line {len(results) + 1}: this is not a result of cactus eval")
    return results, whole


def _parse_line(value: Any, where: str) -> RunResult:
    if not isinstance(value, dict) or "schema" not in value or "cell" not in value:
        raise ValueError(f"{where}: this is not a result of cactus eval")
    if value["schema"] != RESULT_SCHEMA:
        raise ValueError(f"{where}: schema is {value['schema']!r}, but this version reads schema {RESULT_SCHEMA}")
    try:
        result = RunResult(RunConfig.from_dict(value["cell"]), value["answers"], value["provenance"])
        lengths = {name: len(column) for name, column in result.answers.items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{where}: this is not a result of cactus eval: {error}") from None
    missing = [name for name in ANSWER_COLUMNS if name not in lengths]
    if missing or set(lengths.values()) != {result.config.problems}:
        raise ValueError(
            f"{where}: the answers must have {result.config.problems} entries in each of the columns "
            f"{', '.join(ANSWER_COLUMNS)}, but have {lengths}"
        )
    return result


class ResultFile:
    def __init__(self, path: Path, results: list[RunResult], file: IO[bytes], kept: bytes) -> None:
        self.path, self.results = path, results
        self._file, self._lines = file, GrowingFile(file, kept)

    def append(self, result: RunResult) -> None:
        """Add a finished run; it is on the disk when this returns."""
        self._lines.add(result.line())
        os.fsync(self._file.fileno())
        self.results.append(result)


@contextmanager
def opened(path: Path | None) -> Iterator[ResultFile]:
    """Open or create a result file to add to it; what is added takes the place of a line that a kill left unfinished.

    None is a new file that nobody keeps.
    Raises `ValueError` if it is something else, or another process is writing it; the file is then left as it is.
    """
    if path is None:
        with TemporaryDirectory() as folder, opened(Path(folder) / "results.jsonl") as file:
            yield file
        return
    is_new = not path.exists()
    with path.open("a+b") as file:
        lock(file.fileno(), path)
        file.seek(0)
        results, kept = _parse(file.read(), path)
        try:
            yield ResultFile(path, results, file, kept)
        except (TypeError, ValueError):
            if is_new and not os.fstat(file.fileno()).st_size:  # a mistake leaves nothing behind
                path.unlink(missing_ok=True)
            raise


AnswerEntry = dict[str, Any]
"""An answer's entry in each column of a result."""


class Journal:
    """Answers of unfinished runs. An answer counts only under the same key: that of `journal_name`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._entries: dict[str, list[AnswerEntry]] = {}
        kept = whole_lines(path.read_bytes()) if path.exists() else b""
        for _, where, value in objects_in(kept, path):
            if not isinstance(value.get("of"), str) or not isinstance(value.get("row"), dict):
                raise ValueError(f"{where}: this is not an answer of an unfinished run")
            self._entries.setdefault(value["of"], []).append(value["row"])
        self._file = path.open("ab")
        self._lines = GrowingFile(self._file, kept)

    def entries(self, of: str) -> list[AnswerEntry]:
        return [
            entry | {name: number_of(entry[name]) for name in AUDITED if name in entry}
            for entry in self._entries.get(of, [])
        ]

    def num_others(self, of: Collection[str]) -> int:
        """Return how many answers are under none of some keys."""
        return sum(len(entries) for name, entries in self._entries.items() if name not in of)

    def add(self, of: str, entry: AnswerEntry) -> None:
        self._entries.setdefault(of, []).append(entry)
        self._lines.add(_line(of, entry))

    def finish(self, finished: Iterable[str]) -> None:
        """Forget finished runs, and remove the file if nothing is left."""
        for of in finished:
            self._entries.pop(of, None)
        self._file.close()
        write_atomically(
            self._path, "".join(_line(of, each) for of, entries in self._entries.items() for each in entries)
        )
        if not self._entries:
            self._path.unlink()


def _line(of: str, entry: AnswerEntry) -> str:
    return as_json({"of": of, "row": entry}) + "\n"


def journal_of(results: Path) -> Path:
    return results.with_name(results.name + ".partial")
