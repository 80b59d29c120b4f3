"""Steps of similar lengths: every sequence once, little padding, another order in each epoch."""

from __future__ import annotations

import random

from cactus_decoding.lab.training.acceptance.trainer import LengthGroups

LENGTHS = random.Random(0).choices(range(20, 200), k=251)


def padded(order: list[int]) -> int:
    return sum(4 * max(LENGTHS[place] for place in order[i : i + 4]) for i in range(0, len(order), 4))


def test_every_sequence_comes_once_and_little_is_padded():
    order = list(LengthGroups(LENGTHS, 4, seed=0))
    assert sorted(order) == list(range(len(LENGTHS)))
    assert padded(order) < 1.1 * sum(LENGTHS) < padded(list(range(len(LENGTHS))))


def test_orders_are_those_of_seed_and_epoch():
    groups = LengthGroups(LENGTHS, 4, seed=0)
    first = list(groups)
    assert list(groups) == first != list(LengthGroups(LENGTHS, 4, seed=1))
    groups.set_epoch(1)
    assert list(groups) != first
    groups.set_epoch(0)
    assert list(groups) == first


def test_steps_are_not_sorted_among_each_other():
    order = list(LengthGroups(LENGTHS, 4, seed=0))
    longest = [max(LENGTHS[place] for place in order[i : i + 4]) for i in range(0, 64, 4)]
    assert longest != sorted(longest) != longest[::-1]
