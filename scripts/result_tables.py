"""Results of benchmarks, and tables of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parents[1] / "benchmarks" / "results"


def read(name: str, key: str = "results") -> Any:
    """Return what a result file holds under a key."""
    return json.loads((RESULTS / f"{name}.json").read_text())[key]


def table(head: Sequence[str], rows: Sequence[Sequence[str]], aligned: str = "---:") -> str:
    """Return a table in Markdown, the first column to the left."""
    lines = [head, ["---", *[aligned] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
