"""What scripts and studies write into pages: text between two marks, and tables of results."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parents[1] / "benchmarks" / "results"


def insert(page: str, name: str, text: str) -> str:
    """Replace what a page has between ``<!-- begin: name -->`` and ``<!-- end: name -->``."""
    begin, end = f"<!-- begin: {name} -->", f"<!-- end: {name} -->"
    before, mark, rest = page.partition(begin)
    _, closing, after = rest.partition(end)
    if not mark or not closing:
        raise ValueError(f"the page must contain {begin} and {end}")
    return f"{before}{begin}\n\n{text}\n\n{end}{after}"


def table(head: Sequence[object], rows: Iterable[Sequence[object]], names: int = 1, notes: int = 0) -> str:
    """Return a table in Markdown, of which the first columns are names, and the last notes, and stand to the left."""
    lines = ["| " + " | ".join(map(str, head)) + " |"]
    lines.append("|---" * names + "|" + "---:|" * (len(head) - names - notes) + "---|" * notes)
    return "\n".join([*lines, *("| " + " | ".join(map(str, row)) + " |" for row in rows)])


def read(name: str, key: str = "results") -> Any:
    """Return what a result file of a benchmark holds under a key."""
    return json.loads((RESULTS / f"{name}.json").read_text())[key]
