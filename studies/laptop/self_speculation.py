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
from pathlib import Path
from typing import Any

import torch

from cactus_decoding import load_pair
from scripts.bundled_gguf import write_bundled
from scripts.pages import table
from studies.laptop.benchmark import CONTEXT, in_turn, ours, summary
from studies.study import study

RESULTS = Path(__file__).with_name("results") / "self_speculation.json"
TYPES = ("Q8_0", "Q5_0", "Q4_K_M", "Q4_0", "Q3_K_M", "Q2_K")


def measure(given: Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        return {"rows": drafted(given, Path(folder))}


def drafted(given: Namespace, folder: Path) -> list[dict[str, Any]]:
    """Return what each draft did, problem after problem in turn."""
    target = write_bundled("target", folder, "float16")
    drafts = {"worded, float16": write_bundled("worded", folder, "float16")}
    for kind in TYPES:
        drafts[kind] = folder / f"target-{kind}.gguf"
        subprocess.run([given.llama_quantize, target, drafts[kind], kind], check=True, capture_output=True)
    torch.set_num_threads(given.threads)
    ways = {}
    for name, draft in drafts.items():
        for proposals in (0, given.proposals) if name == "worded, float16" else (given.proposals,):
            pair = load_pair(f"{target}:context_size={CONTEXT}", draft, kept_prompts=0)
            ways[name, proposals] = ours(pair, "lossless", proposals)
    whole = target.stat().st_size
    return [
        summary(name, proposals, 1.0, answers) | {"size": drafts[name].stat().st_size / whole}
        for (name, proposals), answers in in_turn(ways, given.problems, 1.0).items()
    ]


def shown(result: Any) -> dict[str, str]:
    lines = []
    for row in result["rows"]:
        drafted, accepted = (sum(answer[name] for answer in row["answers"]) for name in ("drafted", "accepted"))
        cells = ["none", "", "", ""]
        if row["proposals"]:
            share = f"{100 * accepted / drafted:.1f} %"
            cells = [row["way"], f"{100 * row['size']:.0f} %", share, f"{row['accepted_per_step']:.2f}"]
        lines.append([*cells, f"{row['processor_ms_per_token']:.2f}"])
    head = "draft", "size of its file", "accepted of drafted", "accepted per step", "processor ms per token"
    return {"self-speculation": table(head, lines)}


if __name__ == "__main__":
    tool = (None, "llama.cpp's own tool, of the same source", {"type": Path})
    study(
        __doc__, RESULTS, "studies/tables/laptop.md", measure, shown, needed=["llama_quantize"],
        llama_quantize=tool, problems=60, proposals=6, threads=1,
    )  # fmt: skip
