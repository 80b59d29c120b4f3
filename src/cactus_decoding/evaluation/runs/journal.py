"""Answers of cells that are not finished yet, beside the result file: a kill loses the answer in hand, no more."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from cactus_decoding.evaluation.runs.results import AUDITED
from cactus_decoding.files.jsonl import number_of, whole_lines
from cactus_decoding.files.writing import as_json, write_atomically

Row = dict[str, Any]


class Journal:
    """Rows of unfinished cells.

    A row counts only for the same cell, problems and commit. A last line that a kill cut off is passed over.

    Args:
        path: the file; it need not exist.
    """

    def __init__(self, path: Path) -> None:
        """Read what an earlier run left."""
        self._path = path
        self._rows: dict[str, list[Row]] = {}
        data = whole_lines(path.read_bytes()) if path.exists() else b""
        for line in data.splitlines():
            value = json.loads(line)
            self._rows.setdefault(value["of"], []).append(value["row"])
        self._file = path.open("ab")
        self._file.truncate(len(data))

    def rows(self, of: str) -> list[Row]:
        """Return the rows of an unfinished cell, in the order of its problems."""
        return [
            row | {name: number_of(row[name], math.inf) for name in AUDITED if name in row}
            for row in self._rows.get(of, [])
        ]

    def add(self, of: str, row: Row) -> None:
        """Keep a row."""
        self._rows.setdefault(of, []).append(row)
        self._file.write(_line(of, row).encode())
        self._file.flush()

    def finish(self, finished: Iterable[str]) -> None:
        """Forget finished cells, and remove the file where nothing is left."""
        for of in finished:
            self._rows.pop(of, None)
        self._file.close()
        write_atomically(self._path, "".join(_line(of, row) for of, rows in self._rows.items() for row in rows))
        if not self._rows:
            self._path.unlink()


def _line(of: str, row: Row) -> str:
    return as_json({"of": of, "row": row}) + "\n"


def journal_of(results: Path) -> Path:
    """Return where the journal of a result file is.

    Example:
        >>> journal_of(Path("results.jsonl")).name
        'results.jsonl.partial'
    """
    return results.with_name(results.name + ".partial")
