"""Writes the tables of docs/performance.md, docs/vllm.md and docs/studies/tables/proposals.md.

python scripts/performance_tables.py
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import proposal_tables
import vllm_tables
from pages import ROOT, Cell, columns, insert, read, table, with_ends
from results import parse

from cactus_decoding.core.files.writing import write_atomically

PAGES = [ROOT / "docs" / name for name in ("performance.md", "vllm.md", "laptop.md", "studies/tables/proposals.md")]
OURS = "ours|lossless"
PEERS = {
    "generate": "transformers' `generate`",
    "assisted": "its assisted generation",
    "vllm": "vLLM's CPU engine",
    "vllm-speculative": "the same with the draft",
}
LENGTHS = {
    "real_pair_bfloat16": "1.5B and 0.5B, bfloat16",
    "real_pair_bfloat16_again": "the same, a slower machine",
    "twins_bfloat16": "twins, bfloat16",
    "twins_float32": "twins, float32",
}
BASELINES = {"generate": "`generate`", "assisted|7": "assisted, 7", "lossless|auto": "lossless, `auto`"}


def render(page: str) -> str:
    """Return the page with those tables that it has marks for, as the result files give them."""
    for name, made in TABLES.items():
        if f"<!-- begin: {name} -->" in page:
            page = insert(page, name, made())
    return page


def draft_lengths() -> str:
    """Return tokens per second over plain decoding by number of proposals, and at the best one over lossless at its."""
    shown, counts = [], [1, 3, 5, 7, 11, 15]
    for name, pair in LENGTHS.items():
        found = read(name, "summary")
        for rule, best in found["best"].items():
            cells = [found["cells"].get(f"{rule}|{count}") for count in counts]
            ratios = ["" if cell is None else f"{cell['over_plain'][0]:.2f}" for cell in cells]
            against = "" if rule == "lossless" else with_ends(best["over_lossless_at_its_best"])
            shown.append([pair, rule, *ratios, with_ends(best["over_plain"]), against])
    return table(["pair", "rule", *counts, "at its best", "÷ lossless at its best"], shown)


def over_plain(name: str) -> Cell:
    return lambda found: with_ends(found["cells"][name]["over_plain"]) if name in found["cells"] else ""


def in_ms(key: str) -> str:
    return f"{{{key}:.2f}}"


def passes() -> list[dict[str, Any]]:
    """Return the passes by model and tokens, in milliseconds."""
    return [
        {"model": model, "tokens": kind.split()[0], **{part: taken / 1000 for part, taken in row.items()}}
        for model, kinds in read("passes", "passes").items()
        for kind, row in kinds.items()
    ]


def vllm_load() -> str:
    """Return speeds over no draft by numbers of requests at once: the median of rounds, and the least and the most."""
    ratios = read("vllm_load", "ratios_to_no_draft")
    sizes = range(1, 1 + max(len(by) for by in ratios.values()))
    return table(["requests at once", *ratios], [[size, *(with_ends(by[size - 1]) for by in ratios.values())]
                                                 for size in sizes])  # fmt: skip


def vllm_steps() -> list[dict[str, Any]]:
    """Return what a step of vLLM takes over one without a rule, on two pairs."""
    pairs = {"bundled": read("vllm_overhead_bundled", "added"), "real": read("vllm_overhead", "added")}
    return [
        {"asked": asked, **{pair: with_ends(added[asked]["ratio"]) for pair, added in pairs.items()}}
        for asked in pairs["real"]
    ]


COLUMNS: dict[str, tuple[Callable[[], Iterable[Any]], dict[str, Cell]]] = {
    "peers": (lambda: read("end_to_end"), {
        "temperature": "{temperature:g}",
        **{title: f"{{contenders[{OURS}][ratio][{name}]:.2f}}" for name, title in PEERS.items()},
    }),
    "passes": (passes, {
        "model": "{model}", "tokens read": "{tokens}", "kernels": in_ms("kernels"),
        "transformers' Python": in_ms("transformers_python"), "whole pass": in_ms("whole"),
        "replayed": in_ms("whole_replayed"),
        "whole ÷ replayed": lambda row: f"{row['whole'] / row['whole_replayed']:.2f}",
    }),
    "ordinary": (
        lambda: [time | {"rule": name} for name, time in read("verification_ordinary")[0]["times"].items()][1:],
        {"rule": "{rule}", "ratio": "{ratio:.2f}", "accepted of 10": "{accepted:.1f}"},
    ),
    "protected": (lambda: [each for each in read("verification_protected") if each["what"] == "step"], {
        "rule": "{rule}",
        "truncation": lambda row: "top-k 20, top-p 0.95" if "top_k=20" in row["sampling"] else "none",
        "protected ÷ unprotected": "{times[protected][ratio]:.2f}",
        "from whole rows ÷ unprotected": "{times[protected, from whole rows][ratio]:.2f}",
    }),
    "vllm_overhead": (vllm_steps, {
        "asked for": "{asked}", "bundled pair": "{bundled}", "1.5B and 0.5B": "{real}",
    }),
    "length_baselines": (lambda: [read(name, "summary") | {"pair": pair} for name, pair in LENGTHS.items()], {
        "pair": "{pair}", "plain, tokens/s": "{cells[plain][tokens_per_second]:.1f}",
        **{f"{title} ÷ plain": over_plain(name) for name, title in BASELINES.items()}, "prompts": "{prompts}",
    }),
}  # fmt: skip
"""Tables of which each row is one thing that was measured."""
TABLES: dict[str, Callable[[], str]] = {
    **proposal_tables.TABLES,
    **vllm_tables.TABLES,
    **{name: lambda rows=rows, heads=heads: columns(rows(), heads) for name, (rows, heads) in COLUMNS.items()},
    "draft_lengths": draft_lengths,
    "vllm_load": vllm_load,
}

if __name__ == "__main__":
    for page in parse(__doc__, page=(PAGES, "the pages to write the tables to")).page:
        write_atomically(page, render(page.read_text(encoding="utf-8")))
