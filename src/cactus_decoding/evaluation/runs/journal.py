"""Answers of cells that are not finished yet, beside the result file: a kill loses the answer in hand, no more."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from cactus_decoding.evaluation.runs.results import AUDITED, json_numbers

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
        data = path.read_bytes() if path.exists() else b""
        for line in data[: data.rfind(b"\n") + 1].splitlines():
            value = json.loads(line)
            self._rows.setdefault(value["of"], []).append(value["row"])
        self._file = path.open("ab")
        self._file.truncate(data.rfind(b"\n") + 1)

    def rows(self, of: str) -> list[Row]:
        """Return the rows of an unfinished cell, in the order of its problems."""
        return [
            row | {name: float("inf") for name in AUDITED if name in row and row[name] is None}
            for row in self._rows.get(of, [])
        ]

    def add(self, of: str, row: Row) -> None:
        """Keep a row."""
        self._rows.setdefault(of, []).append(row)
        line = json.dumps({"of": of, "row": json_numbers(row)}, allow_nan=False)
        self._file.write(line.encode() + b"\n")
        self._file.flush()

    def finish(self, finished: Iterable[str]) -> None:
        """Forget finished cells, and remove the file where nothing is left."""
        for of in finished:
            self._rows.pop(of, None)
        self._file.close()
        scratch = self._path.with_name(self._path.name + ".new")
        with scratch.open("w") as file:
            for of, rows in self._rows.items():
                file.writelines(json.dumps({"of": of, "row": json_numbers(row)}) + "\n" for row in rows)
        os.replace(scratch, self._path)
        if not self._rows:
            self._path.unlink()


def journal_of(results: Path) -> Path:
    """Return where the journal of a result file is.

    Example:
        >>> journal_of(Path("results.jsonl")).name
        'results.jsonl.partial'
    """
    return results.with_name(results.name + ".partial")
