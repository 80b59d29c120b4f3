"""Harder quantised files of the target as its drafts: a table in docs/studies/tables/laptop.md.

    python -m studies.laptop.self_speculation --llama-quantize PATH    minutes on an idle machine
    python -m studies.laptop.self_speculation --only-render            the table from the result file

The target is the bundled one in float16, the drafts what llama.cpp's own tool makes of that file, and beside them the
bundled worded draft. docs/performance.md says how to build the tool.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from cactus_decoding import load_pair
from cactus_decoding.zoo.word_problems import word_problems
from scripts.bundled_gguf import write_bundled
from scripts.pages import table
from studies.laptop.benchmark import Answer, ours, summary
from studies.tables import render, table_parser

TYPES = ("Q8_0", "Q5_0", "Q4_K_M", "Q4_0", "Q3_K_M", "Q2_K")
CONTEXT = 512


def measure(given: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """Return what each draft did, problem after problem in turn."""
    target = write_bundled("target", folder, "float16")
    drafts = {"worded, float16": write_bundled("worded", folder, "float16")}
    for kind in TYPES:
        drafts[kind] = folder / f"target-{kind}.gguf"
        subprocess.run([given.llama_quantize, target, drafts[kind], kind], check=True, capture_output=True)
    torch.set_num_threads(given.threads)
    ways = {
        (name, proposals): ours(
            load_pair(f"{target}:context_size={CONTEXT}", draft, kept_prompts=0), "lossless", proposals
        )
        for name, draft in drafts.items()
        for proposals in ((0, given.proposals) if name == "worded, float16" else (given.proposals,))
    }
    answers: dict[tuple[str, int], list[Answer]] = {key: [] for key in ways}
    for number, problem in enumerate(islice(word_problems("validation"), given.problems + 1)):
        for key, way in ways.items():
            answer = way(problem.prompt, 1.0, number)
            if number:  # the first warms up
                answers[key].append(answer)
    whole = target.stat().st_size
    return [
        summary(name, proposals, 1.0, 0, answers[name, proposals]) | {"size": drafts[name].stat().st_size / whole}
        for name, proposals in ways
    ]


def markdown(rows: list[dict[str, Any]]) -> str:
    """Return the table."""
    lines = []
    for row in rows:
        drafted, accepted = (sum(answer[name] for answer in row["answers"]) for name in ("drafted", "accepted"))
        if not row["proposals"]:
            lines.append(["none", "", "", "", f"{row['processor_ms_per_token']:.2f}"])
            continue
        cells = [row["way"], f"{100 * row['size']:.0f} %", f"{100 * accepted / drafted:.1f} %"]
        cells += [f"{row['accepted_per_step']:.2f}", f"{row['processor_ms_per_token']:.2f}"]
        lines.append(cells)
    head = "draft", "size of its file", "accepted of drafted", "accepted per step", "processor ms per token"
    return table(head, lines)


def main() -> None:
    """Measure, write the result file, and put the table on the page."""
    results = Path(__file__).with_name("results") / "self_speculation.json"
    parser = table_parser(__doc__, results, "docs/studies/tables/laptop.md")
    parser.add_argument("--llama-quantize", type=Path, help="llama.cpp's own tool, of the same source")
    parser.add_argument("--problems", type=int, default=60)
    parser.add_argument("--proposals", type=int, default=6)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    if not given.only_render and (given.llama_quantize is None or not given.llama_quantize.is_file()):
        parser.error("--llama-quantize must be the path of llama.cpp's tool")

    def measured() -> list[dict[str, Any]]:
        with tempfile.TemporaryDirectory() as folder:
            return measure(given, Path(folder))

    arguments = {name: getattr(given, name) for name in ("problems", "proposals", "threads")}
    render(given, "self-speculation", markdown, measured, arguments)


if __name__ == "__main__":
    main()
