"""Schemes of one's own: those of studies/trees emit what they should, enumerated in float64 to 1e-12."""

from __future__ import annotations

import pytest
from support.tables import all_of
from support.tree_enumeration import Models, Shape, lossless_distance, mean_accepted, uniform_shape

from cactus_decoding.core.schemes import VERIFICATIONS
from cactus_decoding.core.types import ROOT
from cactus_decoding.core.verification.tree import Judge, RandomSource, Scheme, Tree, Walk, left_over, ratio
from studies.trees.recursive import recursive
from studies.trees.traversal import traversal

SCHEMES: dict[str, Scheme] = {"recursive": recursive, "traversal": traversal}
SHAPES = {
    "a chain": Shape((0, 0), (1, 1)),
    "fixed only": Shape((2, 1), (0, 0)),
    "a fixed and a drawn one": Shape((1, 1), (1, 1)),
    "where the draft is unsure": Shape((1, 1, 1), (1, 1, 1), by_row=True),
    "two drawn": Shape((0, 0), (2, 1)),
    "a fixed and two drawn": Shape((1,), (2,)),
}


@all_of("name", SCHEMES)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_lossless_responses_have_the_target_s_distribution(name: str, shape: Shape) -> None:
    for vocabulary, seed, temperature in ((2, 1, 1.0), (3, 2, 2.0), (3, 3, 1.0)):
        assert lossless_distance(SCHEMES[name], Models(vocabulary, seed, temperature), shape, 3) < 1e-12


def recursive_without_update(tree: Tree, judge: Judge, chance: RandomSource) -> Walk:
    """Wrong: test every child against h itself, and draw from what the last one leaves of that."""
    path: list[int] = []
    node = ROOT
    while (position := tree.at(node)) is not None:
        h, kept = position.relaxed_row(judge(position).rule), None
        for index, child in enumerate(position.nodes):
            draft, token = position.distribution(index).probs, position.token_ids[index]
            if chance.below(child, ratio(h[token].item(), draft[token].item())):
                kept = child
                break
            left = left_over(h, draft)
        if kept is None:
            return Walk.along(tree, judge, path, chance.token(left if left.sum() > 0 else h))
        path.append(kept)
        node = kept
    return Walk.along(tree, judge, path, chance.token(tree.row(node).probs))


def test_recursion_without_updating_the_residual_is_noticed() -> None:
    for label in ("a fixed and a drawn one", "two drawn"):
        distances = [lossless_distance(recursive_without_update, Models(3, i), SHAPES[label], 3) for i in (2, 3, 5)]
        assert max(distances) > 1e-3


@pytest.mark.slow
def test_schemes_keep_more_in_the_order_of_their_papers() -> None:
    token, joint = VERIFICATIONS["token"].function, VERIFICATIONS["joint"].function
    ways = {
        "chain": (token, uniform_shape(2, 0, 1)),
        "block": (joint, uniform_shape(2, 0, 1)),
        "recursive": (recursive, uniform_shape(2, 0, 2)),
        "traversal": (traversal, uniform_shape(2, 0, 2)),
        "match": (token, uniform_shape(2, 1, 1)),
        "joint": (joint, uniform_shape(2, 1, 1)),
    }
    means = {
        label: sum(mean_accepted(scheme, Models(3, seed), shape) for seed in range(50, 56)) / 6
        for label, (scheme, shape) in ways.items()
    }
    assert sorted(means, key=means.__getitem__) == list(ways)
