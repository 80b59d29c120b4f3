"""Harder quantised files of the target as its drafts: a table in docs/studies/tables/laptop.md.

    python -m studies.laptop.self_speculation --llama-quantize PATH    minutes on an idle machine
    python -m studies.laptop.self_speculation --only-render            the table from the result file

The target is the bundled one in float16, the drafts what llama.cpp's own tool makes of that file, and beside them the
bundled worded draft. docs/performance.md says how to build the tool.
"""

from __future__ import annotations

import subprocess
import tempfile
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cactus_decoding import load_pair
from scripts.bundled_gguf import write_bundled
from scripts.pages import Cell, columns
from studies.laptop.benchmark import CONTEXT, in_turn, ours, summary
from studies.study import study

RESULTS = Path(__file__).with_name("results") / "self_speculation.json.gz"
TYPES = ("Q8_0", "Q5_0", "Q4_K_M", "Q4_0", "Q3_K_M", "Q2_K")


def measure(given: Namespace) -> dict[str, Any]:
    """Return what each draft did, problem after problem in turn."""
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        target = write_bundled("target", folder, "float16")
        drafts = {"worded, float16": write_bundled("worded", folder, "float16")}
        for kind in TYPES:
            drafts[kind] = folder / f"target-{kind}.gguf"
            subprocess.run([given.llama_quantize, target, drafts[kind], kind], check=True, capture_output=True)
        asked = [("worded, float16", 0), *((name, given.proposals) for name in drafts)]
        pairs = {
            name: load_pair(f"{target}:context_size={CONTEXT}", draft, kept_prompts=0) for name, draft in drafts.items()
        }
        ways = {(name, count): ours(pairs[name], "lossless", count) for name, count in asked}
        return {"rows": [
            summary(name, count, 1.0, answers) | {"size": drafts[name].stat().st_size / target.stat().st_size}
            for (name, count), answers in in_turn(ways, given.problems, 1.0).items()
        ]}  # fmt: skip


def shown(result: Any) -> dict[str, str]:
    def drafting(shown: Callable[[Any], str]) -> Cell:
        return lambda row: shown(row) if row["proposals"] else ""

    def accepted(row: Any) -> str:
        drafted, kept = (sum(answer[name] for answer in row["answers"]) for name in ("drafted", "accepted"))
        return f"{kept / drafted:.1%}".replace("%", " %")

    return {"self-speculation": columns(result["rows"], {
        "draft": lambda row: row["way"] if row["proposals"] else "none",
        "size of its file": drafting(lambda row: f"{100 * row['size']:.0f} %"),
        "accepted of drafted": drafting(accepted),
        "accepted per step": drafting("{accepted_per_step:.2f}".format_map),
        "processor ms per token": "{processor_ms_per_token:.2f}",
    })}  # fmt: skip


if __name__ == "__main__":
    tool = (None, "llama.cpp's own tool, of the same source", {"type": Path})
    study(
        __doc__, RESULTS, "studies/tables/laptop.md", measure, shown, needed=["llama_quantize"],
        llama_quantize=tool, problems=60, proposals=6,
    )  # fmt: skip
