"""Harder quantised files of the target as its drafts: a table in docs/laptop.md.

    python scripts/self_speculation.py --llama-quantize PATH    minutes on an idle machine
    python scripts/self_speculation.py --only-render            the table from the result file

The target is the bundled one in float16, the drafts what llama.cpp's own tool makes of that file, and beside them the
bundled worded draft. docs/laptop.md says how to build the tool.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from bundled_gguf import write_bundled
from llama_cpp_benchmark import Answer, ours, summary
from marked_page import insert

from cactus_decoding import load_pair
from cactus_decoding.files.provenance import provenance
from cactus_decoding.zoo.word_problems import word_problems

ROOT = Path(__file__).resolve().parents[1]
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
        (name, proposals): ours(load_pair(f"{target}:context_size={CONTEXT}", draft), "lossless", proposals)
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
    lines = ["| draft | size of its file | accepted of drafted | accepted per step | processor ms per token |"]
    lines.append("|---|---:|---:|---:|---:|")
    for row in rows:
        drafted, accepted = (sum(answer[name] for answer in row["answers"]) for name in ("drafted", "accepted"))
        if not row["proposals"]:
            lines.append(f"| none | | | | {row['processor_ms_per_token']:.2f} |")
            continue
        cells = [row["way"], f"{100 * row['size']:.0f} %", f"{100 * accepted / drafted:.1f} %"]
        cells += [f"{row['accepted_per_step']:.2f}", f"{row['processor_ms_per_token']:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, write the result file, and put the table on the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama-quantize", type=Path, help="llama.cpp's own tool, of the same source")
    parser.add_argument("--problems", type=int, default=60)
    parser.add_argument("--proposals", type=int, default=6)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only-render", action="store_true")
    parser.add_argument("--results", type=Path, default=ROOT / "docs/results/self_speculation.json")
    parser.add_argument("--page", type=Path, default=ROOT / "docs/laptop.md")
    given = parser.parse_args()
    if not given.only_render:
        if given.llama_quantize is None or not given.llama_quantize.is_file():
            parser.error("--llama-quantize must be the path of llama.cpp's tool")
        with tempfile.TemporaryDirectory() as folder:
            rows = measure(given, Path(folder))
        names = ("problems", "proposals", "threads")
        about = provenance({name: getattr(given, name) for name in names})
        given.results.write_text(json.dumps({"rows": rows, "provenance": about}) + "\n")
    rows = json.loads(given.results.read_text())["rows"]
    given.page.write_text(insert(given.page.read_text(), "self-speculation", markdown(rows)))


if __name__ == "__main__":
    main()
