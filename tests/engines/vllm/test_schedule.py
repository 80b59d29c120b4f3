"""Which number of proposals is chosen for which batch size, how it is written, and what is measured."""

from itertools import count

import pytest
from support.tables import all_of

from cactus_decoding.engines.vllm.schedule import MARGIN, cautious, choose, parse_schedule, spelled, vllm_schedule

NONE = {0: 10.0, 2: 9.0}


@all_of(
    "rates, expected",
    [
        ({1: {0: 10.0, 1: 11.0, 3: 12.0}}, ((1, 3),)),
        ({1: {0: 10.0, 3: 10.0 * (1 + MARGIN)}}, ((1, 0),)),  # as much as the margin is not more
        ({1: {0: 10.0, 3: 10.0 * (1 + MARGIN) + 1e-9}}, ((1, 3),)),
        ({1: NONE, 2: NONE, 4: NONE, 8: NONE}, ((1, 0),)),
        ({1: {0: 1.0, 4: 2.0}, 2: {0: 1.0, 4: 2.0}, 4: {0: 1.0, 4: 2.0}}, ((1, 4),)),
        ({1: {0: 1.0, 4: 2.0}, 2: {0: 1.0, 2: 2.0}, 4: {0: 1.0, 1: 2.0}, 8: NONE}, ((1, 4), (2, 2), (3, 1), (5, 0))),
        ({8: {0: 1.0, 1: 2.0}, 4: NONE}, ((4, 0), (8, 1))),  # between them the smaller one, from either side
    ],
)
def test_what_pays_is_chosen_and_between_two_sizes_the_smaller_number(rates: dict, expected: tuple) -> None:
    assert choose(rates) == expected


def test_a_number_that_gained_in_some_rounds_only_is_not_chosen() -> None:
    """The machine is three times as fast in the last round, and was disturbed in the second, under 3 proposals."""
    rounds = [{0: 10.0, 1: 11.0, 3: 15.0}, {0: 10.0, 1: 11.0, 3: 8.0}, {0: 30.0, 1: 33.0, 3: 45.0}]
    assert cautious(rounds) == {0: 10.0, 1: 11.0, 3: 8.0}
    assert choose({1: cautious(rounds)}) == ((1, 1),)
    means = {number: sum(each[number] for each in rounds) / len(rounds) for number in rounds[0]}
    assert choose({1: means}) == ((1, 3),)  # as the mean would have it


def test_at_every_size_what_is_chosen_was_measured_to_be_faster_than_nothing_or_is_nothing() -> None:
    numbers = count(3)
    for _ in range(200):
        rates = {size: {k: 1 + (next(numbers) * 7919 % 97) / 97 for k in (0, 1, 2, 3, 5)} for size in (1, 2, 4, 8)}
        schedule = choose(rates)
        for size, speeds in rates.items():
            chosen = [number for begin, number in schedule if begin <= size][-1]
            assert chosen == 0 or speeds[chosen] > (1 + MARGIN) * speeds[0]
            assert chosen != 0 or max(speeds.values()) <= (1 + MARGIN) * speeds[0]


@all_of("schedule", [((1, 4),), ((1, 4), (3, 2), (5, 0)), ((1, 0), (2, 7))])
def test_a_schedule_is_read_as_it_is_written(schedule: tuple) -> None:
    assert parse_schedule(spelled(schedule)) == schedule


@all_of(
    "text, said",
    [
        ("1:4,3", "FROM:NUMBER pairs"),
        ("1:4,3:-1", "FROM:NUMBER pairs"),
        ("1:4:2", "FROM:NUMBER pairs"),
        ("a:4", "FROM:NUMBER pairs"),
        ("2:4", "must begin with 1 and rise"),
        ("1:4,1:2", "must begin with 1 and rise"),
        ("1:4,5:2,3:0", "must begin with 1 and rise"),
    ],
)
def test_other_texts_are_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_schedule(text)


@all_of(
    "schedule, most, ranges",
    [
        (((1, 4),), 4, [[1, 1, 4]]),
        (((1, 2), (2, 5), (9, 0)), 5, [[1, 1, 2], [2, 8, 5], [9, 9, 0]]),
        (((1, 0),), 1, [[1, 1, 0]]),  # vLLM wants a draft to propose something
    ],
)
def test_vllm_gets_inclusive_ranges(schedule: tuple, most: int, ranges: list) -> None:
    assert list(vllm_schedule(schedule).values()) == [most, ranges]
