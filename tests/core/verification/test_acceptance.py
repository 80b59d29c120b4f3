"""How many proposals each scheme keeps with the target's own law, enumerated and by a second way to work it out."""

from __future__ import annotations

import itertools
import random
from itertools import pairwise

import pytest
from support.tree_acceptance import by_matching, jointly, most_kept
from support.tree_enumeration import TREE_SCHEMES, Models, Shape, mean_accepted, uniform_shape
from torch import Tensor


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


def best_of_one_token(target: Tensor, draft: Tensor, drafts: int) -> float:
    """Return the most that any scheme keeps of drafts of one token each: a minimal cut between drafts and tokens."""
    some = (target.new_tensor(each).bool() for each in itertools.product((0, 1), repeat=len(target)))
    return min((target[each].sum() + 1 - draft[each].sum() ** drafts).item() for each in some)


@pytest.mark.parametrize("name", ["recursive", "traversal"])
def test_independent_drafts_keep_more_the_more_there_are_and_no_more_than_can_be(name: str) -> None:
    for seed in (21, 22, 23, 24):
        models = Models(3, seed)
        alone = mean_accepted(TREE_SCHEMES["joint" if name == "traversal" else "token"], models, uniform_shape(2, 0, 1))
        kept = [mean_accepted(TREE_SCHEMES[name], models, Shape((0, 0), (0, 0), drafts=drafts)) for drafts in (1, 2, 3)]
        assert kept[0] == pytest.approx(alone, abs=1e-12)
        assert all(less <= more + 1e-12 for less, more in pairwise(kept))
        for drafts, each in enumerate(kept, start=1):
            assert each <= most_kept(models, 2, drafts) + 1e-12
            one = mean_accepted(TREE_SCHEMES[name], models, Shape((0,), (0,), drafts=drafts))
            assert one <= best_of_one_token(*models(()), drafts) + 1e-12


@pytest.mark.slow
def test_schemes_keep_more_in_the_order_of_their_papers() -> None:
    ways = {
        "chain": ("token", uniform_shape(2, 0, 1)),
        "block": ("joint", uniform_shape(2, 0, 1)),
        "recursive": ("recursive", uniform_shape(2, 0, 2)),
        "traversal": ("traversal", uniform_shape(2, 0, 2)),
        "match": ("token", uniform_shape(2, 1, 1)),
        "joint": ("joint", uniform_shape(2, 1, 1)),
    }
    means = {
        label: sum(mean_accepted(TREE_SCHEMES[name], Models(3, seed), shape) for seed in range(50, 56)) / 6
        for label, (name, shape) in ways.items()
    }
    assert sorted(means, key=means.__getitem__) == list(ways)
