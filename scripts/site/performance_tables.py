"""The tables of the page on performance, from the benchmarks' result files: they cannot say anything else."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"
OURS = "ours|lossless"
PEERS = {
    "generate": "transformers' `generate`",
    "assisted": "its assisted generation",
    "vllm": "vLLM's CPU engine",
    "vllm-speculative": "the same with the draft",
}
FORWARDS = "transformers' target forward over ours"
MARK = re.compile(r"<!-- table: (\w+) -->")


def with_tables(page: str) -> str:
    """Return a page with its marks replaced by tables."""
    return MARK.sub(lambda found: TABLES[found[1]](), page)


def _peers() -> str:
    rows = []
    for result in _read("end_to_end"):
        ratio = result["contenders"][OURS]["ratio"]
        rows.append([f"{result['temperature']:g}", *(f"{ratio[name]:.2f}" for name in PEERS)])
    return _table(["temperature", *PEERS.values()], rows)


def _steps() -> str:
    rows = [
        [
            f"{result['context']:,}",
            f"{result['wall']['step over its forwards']:.3f}",
            f"{result['wall'][FORWARDS]:.2f}",
        ]
        for result in _read("end_to_end_step")
    ]
    return _table(["tokens of context", "step ÷ its forward passes", "transformers' forward pass ÷ ours"], rows)


def _verification() -> str:
    first, second = (result["times"] for result in _read("verification"))
    names = [name for name in first if name != "logsumexp"]
    rows = [
        [name, f"{first[name]['ratio']:.2f}", f"{second[name]['ratio']:.2f}" if name in second else ""]
        for name in names
    ]
    return _table(["what", "top-k 20, top-p 0.95", "no truncation"], rows)


def _solving() -> str:
    times = _read("solving")[0]["times"]
    rows = [[name, f"{time['ms']:.1f}", f"{time['ratio']:.1f}"] for name, time in times.items()]
    return _table(["what", "ms", "ratio"], rows)


def _read(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text())["results"]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


TABLES: dict[str, Callable[[], str]] = {
    "peers": _peers,
    "steps": _steps,
    "verification": _verification,
    "solving": _solving,
}
