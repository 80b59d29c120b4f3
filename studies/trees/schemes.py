"""What each way to verify trees accepts, by enumeration of random toy pairs: a table in docs/studies/tables/trees.md.

    python -m studies.trees.schemes       minutes

The toys and the enumeration are those of the tests (tests/support/tree_enumeration.py). `recursive` and `traversal`
are no part of the package. They stand beside this file as examples of schemes of one's own: a function of a tree, of
what judges its positions, and of random numbers, whose exactness tests/studies/test_tree_schemes.py enumerates.
"""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from statistics import fmean
from typing import Any

from support.tree_enumeration import Models, Shape, steps, uniform_shape
from torch import Tensor

from cactus_decoding import parse_rule
from cactus_decoding.core.schemes import VERIFICATIONS
from cactus_decoding.core.verification.tree import Scheme
from scripts.pages import columns
from studies.study import study
from studies.trees.recursive import recursive
from studies.trees.traversal import traversal

RESULTS = Path(__file__).with_name("results") / "schemes.json.gz"
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


SCHEMES: dict[str, Scheme] = {
    "recursive": recursive,
    "traversal": traversal,
    **{name: each.function for name, each in VERIFICATIONS.items() if each.trees},
}


def accepted(scheme: str, models: Models, shape: Shape) -> float:
    """Return the expected accepted tokens of a step with the lossless rule, exactly."""
    found = steps(SCHEMES[scheme], parse_rule("lossless"), models, (), shape)
    return sum(step.probability * len(step.walk.path) for step in found)


def measure(given: Namespace) -> dict[str, Any]:
    """Return the mean over toys of what each way accepts in a step, for each kind of pairs."""
    found = []
    for name, scheme, fixed, drawn in WAYS:
        shape = uniform_shape(DEPTH, fixed, drawn)
        means = [fmean(accepted(scheme, pair(VOCABULARY, i), shape) for i in range(given.toys)) for pair in PAIRS]
        nodes = sum((fixed + drawn) ** level for level in range(1, DEPTH + 1))
        way = {"way": name, "scheme": scheme, "fixed": fixed, "drawn": drawn, "nodes": nodes}
        found.append(way | {"accepted_per_step": means})
    return {"rows": found, "vocabulary": VOCABULARY, "depth": DEPTH}


def shown(result: Any) -> dict[str, str]:
    heads = {
        "way to verify": "{way}",
        "children: fixed, drawn": "{fixed}, {drawn}",
        "nodes": "{nodes}",
        "accepted per step": "{accepted_per_step[0]:.2f}",
        "by a draft half-way to the target": "{accepted_per_step[1]:.2f}",
    }
    return {"schemes": columns(result["rows"], heads, names=2)}


if __name__ == "__main__":
    study(__doc__, RESULTS, "studies/tables/trees.md", measure, shown, toys=(TOYS, "how many random pairs"))
