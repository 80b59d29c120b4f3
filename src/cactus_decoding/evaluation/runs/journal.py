"""Answers of runs that are not finished yet, beside the result file: a kill loses the answer in hand, no more."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from cactus_decoding.evaluation.runs.results import AUDITED
from cactus_decoding.files.jsonl import number_of, objects_in, whole_lines
from cactus_decoding.files.reading import read_bytes
from cactus_decoding.files.writing import as_json, write_atomically

AnswerEntry = dict[str, Any]
"""An answer's entry in each column of a result."""


class Journal:
    """Answers of unfinished runs.

    An answer counts only for the same run, problems and commit. A last line that a kill cut off is passed over.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._entries: dict[str, list[AnswerEntry]] = {}
        data = whole_lines(read_bytes(path)) if path.exists() else b""
        for _, where, value in objects_in(data, path):
            if not isinstance(value.get("of"), str) or not isinstance(value.get("row"), dict):
                raise ValueError(f"{where}: this is not an answer of an unfinished run")
            self._entries.setdefault(value["of"], []).append(value["row"])
        self._file = path.open("ab")
        self._file.truncate(len(data))

    def entries(self, of: str) -> list[AnswerEntry]:
        """Return the answers of an unfinished run, in the order of its problems."""
        return [
            entry | {name: number_of(entry[name], math.inf) for name in AUDITED if name in entry}
            for entry in self._entries.get(of, [])
        ]

    def add(self, of: str, entry: AnswerEntry) -> None:
        """Keep an answer."""
        self._entries.setdefault(of, []).append(entry)
        self._file.write(_line(of, entry).encode())
        self._file.flush()

    def finish(self, finished: Iterable[str]) -> None:
        """Forget finished runs, and remove the file where nothing is left."""
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
    """Return where the journal of a result file is.

    Example:
        >>> journal_of(Path("results.jsonl")).name
        'results.jsonl.partial'
    """
    return results.with_name(results.name + ".partial")
