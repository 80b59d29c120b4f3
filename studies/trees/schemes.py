"""What each way to verify trees accepts, by enumeration of random toy pairs: a table in docs/studies/tables/trees.md.

    python -m studies.trees.schemes       minutes

The toys and the enumeration are those of the tests (tests/support/tree_enumeration.py). Recursive rejection *with*
replacement is not among the ways: it takes siblings that may be the same token, which no proposal of this package has.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

from torch import Tensor

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from support.tree_enumeration import Models, Shape, steps, uniform_shape  # noqa: E402

from cactus_decoding import parse_rule  # noqa: E402
from cactus_decoding.core.files.provenance import provenance  # noqa: E402
from cactus_decoding.core.verification.walk import SCHEMES  # noqa: E402
from scripts.marked_page import insert  # noqa: E402

VOCABULARY, DEPTH, TOYS = 3, 2, 40
WAYS: tuple[tuple[str, str, int, int], ...] = (
    ("a chain, one token after another", "token", 0, 1),
    ("a chain in blocks (`block`)", "joint", 0, 1),
    ("a tree, `recursive`", "recursive", 0, 2),
    ("a tree, `traversal`", "traversal", 0, 2),
    ("a tree, match, two drawn", "token", 0, 2),
    ("a tree, match, two fixed", "token", 2, 0),
    ("a tree, match", "token", 1, 1),
    ("a tree, `joint`", "joint", 1, 1),
)
"""Name, scheme, and the fixed and drawn children of each token."""


class Alike(Models):
    """Pairs whose draft is half-way to its target."""

    def __call__(self, text: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        target, draft = super().__call__(text)
        return target, (target + draft) / 2


PAIRS: tuple[type[Models], ...] = (Models, Alike)


def accepted(scheme: str, models: Models, shape: Shape) -> float:
    """Return the expected accepted tokens of a lossless step, exactly."""
    found = steps(SCHEMES[scheme], parse_rule("lossless"), models, (), shape)
    return sum(step.probability * len(step.walk.path) for step in found)


def rows(toys: int) -> list[dict[str, Any]]:
    """Return the mean over toys of what each way accepts in a step, for each kind of pairs."""
    table = []
    for name, scheme, fixed, drawn in WAYS:
        shape = uniform_shape(DEPTH, fixed, drawn)
        means = [fmean(accepted(scheme, pair(VOCABULARY, i), shape) for i in range(toys)) for pair in PAIRS]
        nodes = sum((fixed + drawn) ** level for level in range(1, DEPTH + 1))
        way = {"way": name, "scheme": scheme, "fixed": fixed, "drawn": drawn, "nodes": nodes}
        table.append(way | {"accepted_per_step": means})
    return table


def markdown(table: list[dict[str, Any]]) -> str:
    """Return the table."""
    lines = [
        "| way to verify | children: fixed, drawn | nodes | accepted per step | by a draft half-way to the target |",
        "|---|---|---:|---:|---:|",
    ]
    for row in table:
        means = " | ".join(f"{mean:.2f}" for mean in row["accepted_per_step"])
        lines.append(f"| {row['way']} | {row['fixed']}, {row['drawn']} | {row['nodes']} | {means} |")
    return "\n".join(lines)


def main() -> None:
    """Enumerate, write the result file, and put the table on the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--toys", type=int, default=TOYS, help="how many random pairs")
    parser.add_argument("--results", type=Path, default=Path(__file__).with_name("results") / "schemes.json")
    parser.add_argument("--page", type=Path, default=ROOT / "docs/studies/tables/trees.md")
    given = parser.parse_args()
    arguments = {
        "toys": given.toys,
        "vocabulary": VOCABULARY,
        "depth": DEPTH,
        "seeds": [0, given.toys - 1],
        "pairs": "tests/support/tree_enumeration.py",
    }
    table = rows(given.toys)
    text = insert(given.page.read_text(), "schemes", markdown(table))
    result = {"rows": table, "provenance": provenance(arguments)}
    given.results.write_text(json.dumps(result, indent=2, allow_nan=False) + "\n")
    given.page.write_text(text)


if __name__ == "__main__":
    main()
