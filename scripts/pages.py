"""What scripts and studies write into pages: tables between two marks, and pictures."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cactus_decoding.core.files.writing import write_atomically

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
Cell = str | Callable[[Any], object]
"""What a column shows of a row: a format of its fields, which a tuple has by their places, or a function."""


def insert(page: str, name: str, text: str) -> str:
    """Replace what a page has between ``<!-- begin: name -->`` and ``<!-- end: name -->``."""
    begin, end = f"<!-- begin: {name} -->", f"<!-- end: {name} -->"
    before, mark, rest = page.partition(begin)
    _, closing, after = rest.partition(end)
    if not mark or not closing:
        raise ValueError(f"the page must contain {begin} and {end}")
    return f"{before}{begin}\n\n{text}\n\n{end}{after}"


def tables_of(page: Path) -> Path:
    """Return where the long tables of a page are."""
    return page.parent / "tables" / page.name


def put(page: Path, shown: Mapping[str, str]) -> None:
    """Write tables between the marks of their names, and pictures (.svg, .csv) at their paths beside the page.

    A table goes where its marks are: on the page, or on that of its long tables.
    """
    texts = {path: path.read_text() for path in (page, tables_of(page)) if path == page or path.exists()}
    for name, made in shown.items():
        if name.endswith((".svg", ".csv")):
            (page.parent / name).parent.mkdir(parents=True, exist_ok=True)
            write_atomically(page.parent / name, made)
        else:
            marked = (path for path, text in texts.items() if f"<!-- begin: {name} -->" in text)
            path = next(marked, page)
            texts[path] = insert(texts[path], name, made)
    for path, text in texts.items():
        write_atomically(path, text)


def table(head: Iterable[object], rows: Iterable[Sequence[object]], names: int = 1, notes: int = 0) -> str:
    """Return a table in Markdown, of which the first columns are names, and the last notes, and stand to the left."""
    head = [*head]
    lines = ["| " + " | ".join(map(str, head)) + " |"]
    lines.append("|---" * names + "|" + "---:|" * (len(head) - names - notes) + "---|" * notes)
    return "\n".join([*lines, *("| " + " | ".join(map(str, row)) + " |" for row in rows)])


def columns(
    rows: Iterable[Any], shown: Mapping[str, Cell] | Sequence[tuple[str, Cell]], names: int = 1, notes: int = 0
) -> str:
    """Return a table with a line for each row, and a column for each head and what it shows.

    >>> print(columns([{"rule": "lossless", "ms": 1.25}], {"rule": "`{rule}`", "s": lambda row: row["ms"] / 1000}))
    | rule | s |
    |---|---:|
    | `lossless` | 0.00125 |
    """
    pairs = [*shown.items()] if isinstance(shown, Mapping) else [*shown]

    def shown_of(cell: Cell, row: Any) -> object:
        if not isinstance(cell, str):
            return cell(row)
        return cell.format(*row) if isinstance(row, tuple) else cell.format_map(row)

    cells = ([shown_of(cell, row) for _, cell in pairs] for row in rows)
    return table([head for head, _ in pairs], cells, names, notes)


def with_ends(interval: Iterable[Any], digits: int = 2, scale: float = 1.0, sign: str = "") -> str:
    """Return a number, with the ends of its interval where it has any.

    >>> with_ends([0.5, 0.25, 0.75]), with_ends([0.5, None, None], 1), with_ends(["inf", "inf", "inf"])
    ('0.50 (0.25 to 0.75)', '0.5', '∞')
    """
    value, *ends = (math.nan if each is None else scale * float(each) for each in interval)
    said, low, high = (f"{each:{sign}.{digits}f}" for each in (value, *ends))
    return "∞" if math.isinf(value) else said if math.isnan(ends[0]) else f"{said} ({low} to {high})"


def read(name: str, key: str = "results") -> Any:
    """Return what a result file of a benchmark holds under a key."""
    return json.loads((RESULTS / f"{name}.json").read_text())[key]
