"""What each way to verify trees accepts, by enumeration of random toy pairs: a table in docs/studies/tables/trees.md.

    python -m studies.trees.schemes       minutes

The toys and the enumeration are those of the tests (tests/support/tree_enumeration.py). HSD as its code is published is
not lossless (tests/core/verification/test_hsd.py), nor is that of SpecTr-GBV (arXiv 2604.25925; test_multipath.py);
what they keep stands here for comparison, and what the latter's theorem states. Of independent drafts, the last line
bounds what any exact scheme keeps: a beginning must be emitted by the target, and be in one of the drafts.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from support import spectr_gbv
from support.tree_acceptance import most_kept
from support.tree_enumeration import Models, Shape, steps, uniform_shape
from support.wrong_trees import hsd_as_published
from torch import Tensor

from cactus_decoding import parse_rule
from cactus_decoding.core.verification.walk import SCHEMES
from scripts.pages import columns
from studies.study import study

RESULTS = Path(__file__).with_name("results") / "schemes.json.gz"
VOCABULARY, DEPTH, TOYS = 3, 2, 40
WAYS: tuple[tuple[str, str, int, int, int], ...] = (
    ("a chain, one token after another", "token", 0, 1, 0),
    ("a chain in blocks (`block`)", "joint", 0, 1, 0),
    ("a chain, `hsd`", "hsd", 0, 1, 0),
    ("a chain, HSD's code, not lossless", "published", 0, 1, 0),
    ("two independent drafts, `recursive`", "recursive", 0, 0, 2),
    ("two independent drafts, `traversal`", "traversal", 0, 0, 2),
    ("two independent drafts, `multipath`", "multipath", 0, 0, 2),
    ("two independent drafts, SpecTr-GBV's code, not lossless", "spectr_gbv", 0, 0, 2),
    ("two independent drafts, SpecTr-GBV's theorem", "theorem", 0, 0, 2),
    ("two independent drafts, at most", "bound", 0, 0, 2),
    ("a tree, `recursive`", "recursive", 0, 2, 0),
    ("a tree, `traversal`", "traversal", 0, 2, 0),
    ("a tree, match, two drawn", "token", 0, 2, 0),
    ("a tree, match, two fixed", "token", 2, 0, 0),
    ("a tree, match", "token", 1, 1, 0),
    ("a tree, `joint`", "joint", 1, 1, 0),
)
"""Name, scheme, the fixed and drawn children of each token, and the number of independent drafts."""


class Alike(Models):
    """Pairs whose draft is half-way to its target."""

    def __call__(self, text: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        target, draft = super().__call__(text)
        return target, (target + draft) / 2


PAIRS: tuple[type[Models], ...] = (Models, Alike)


def accepted(scheme: str, models: Models, shape: Shape) -> float:
    """Return the expected accepted tokens of a step with the lossless rule, exactly."""
    others: dict[str, Callable[[Models, int, int], float]] = {
        "bound": most_kept,
        "theorem": spectr_gbv.theorem,
        "spectr_gbv": lambda *given: spectr_gbv.published(*given)[1],
    }
    if scheme in others:
        return others[scheme](models, len(shape.fixed), shape.drafts)
    way = partial(hsd_as_published, cap="once") if scheme == "published" else SCHEMES[scheme]
    found = steps(way, parse_rule("lossless"), models, (), shape)
    return sum(step.probability * len(step.walk.path) for step in found)


def measure(given: Namespace) -> dict[str, Any]:
    """Return the mean over toys of what each way accepts in a step, for each kind of pairs."""
    found = []
    for name, scheme, fixed, drawn, drafts in WAYS:
        shape = uniform_shape(DEPTH, fixed, drawn)._replace(drafts=drafts)
        means = [fmean(accepted(scheme, pair(VOCABULARY, i), shape) for i in range(given.toys)) for pair in PAIRS]
        nodes = drafts * DEPTH or sum((fixed + drawn) ** level for level in range(1, DEPTH + 1))
        way = {"way": name, "scheme": scheme, "fixed": fixed, "drawn": drawn, "drafts": drafts, "nodes": nodes}
        found.append(way | {"accepted_per_step": means})
    return {"rows": found, "vocabulary": VOCABULARY, "depth": DEPTH}


def shown(result: Any) -> dict[str, str]:
    heads = {
        "way to verify": "{way}",
        "children: fixed, drawn": lambda row: "–" if row["drafts"] else f"{row['fixed']}, {row['drawn']}",
        "nodes": lambda row: f"up to {row['nodes']}" if row["drafts"] else row["nodes"],
        "accepted per step": "{accepted_per_step[0]:.2f}",
        "by a draft half-way to the target": "{accepted_per_step[1]:.2f}",
    }
    return {"schemes": columns(result["rows"], heads, names=2)}


if __name__ == "__main__":
    study(__doc__, RESULTS, "studies/tables/trees.md", measure, shown, toys=(TOYS, "how many random pairs"))
