"""How many proposals each scheme keeps with the target's own law, enumerated and by a second way to work it out."""

from __future__ import annotations

import random

import pytest
from support.tree_acceptance import by_matching, jointly
from support.tree_enumeration import TREE_SCHEMES, Models, Shape, mean_accepted, uniform_shape


@pytest.mark.parametrize(("vocabulary", "fixed", "drawn"), [(2, 1, 1), (3, 1, 1), (3, 2, 1), (3, 0, 1), (3, 2, 0)])
def test_what_is_accepted_is_what_two_ways_to_work_it_out_say(vocabulary: int, fixed: int, drawn: int) -> None:
    shape = uniform_shape(2, fixed, drawn)
    for seed in (21, 22):
        models = Models(vocabulary, seed)
        if drawn:
            assert mean_accepted(TREE_SCHEMES["token"], models, shape) == pytest.approx(
                by_matching(models, (), shape), abs=1e-12
            )
            assert mean_accepted(TREE_SCHEMES["joint"], models, shape) == pytest.approx(
                jointly(models, (), shape), abs=1e-12
            )
        else:  # fixed children are all that there is to choose from: no scheme can keep more
            expected = mean_accepted(TREE_SCHEMES["token"], models, shape)
            assert mean_accepted(TREE_SCHEMES["joint"], models, shape) == pytest.approx(expected, abs=1e-12)


def test_joint_keeps_no_less_than_match_and_match_no_less_than_a_chain_as_deep_in_1000_random_instances() -> None:
    choose = random.Random(23)
    more = [0, 0]
    for seed in range(1000):
        depth, fixed = choose.choice([1, 2, 3]), choose.choice([1, 2])
        models = Models(choose.choice([2, 3, 4]), seed, choose.choice([1.0, 2.0]))
        shape, chain = uniform_shape(depth, fixed, 1), uniform_shape(depth, 0, 1)
        kept = by_matching(models, (), chain), by_matching(models, (), shape), jointly(models, (), shape)
        assert kept[0] <= kept[1] + 1e-12
        assert kept[0] <= jointly(models, (), chain) + 1e-12  # block verification
        assert kept[1] <= kept[2] + 1e-12
        more[0] += kept[1] > kept[0] + 1e-3
        more[1] += kept[2] > kept[1] + 1e-3
    assert more[0] > 500
    assert more[1] > 100


def test_a_tree_whose_fixed_children_are_leaves_may_keep_less_than_a_chain() -> None:
    """A likely token that is fixed cannot be drawn any more: without children of its own it ends the path."""
    models = Models(2, 24)
    row = models(())[0].new_tensor([0.9, 0.1])
    models._rows = {(): (row, row), (0,): (row, row), (1,): (row, row)}
    leaf = Shape((1,), (1,))
    assert mean_accepted(TREE_SCHEMES["token"], models, leaf) == pytest.approx(1.0)
    assert mean_accepted(TREE_SCHEMES["token"], models, uniform_shape(2, 0, 1)) == pytest.approx(2.0)
