"""Which share of a rule is needed at which load, by timings that are made up."""

from __future__ import annotations

import numpy as np
import pytest

from cactus_decoding.contrib.load_rules.shares import load_table, shares_at_sizes
from cactus_decoding.contrib.load_rules.table import LoadRule

SHARES = (0.0, 0.5, 1.0)


def times(**milliseconds: tuple[float, ...]) -> dict[tuple[int, float], np.ndarray]:
    """Return ten rounds about the given medians, by the number of requests, all off by one part in a hundred."""
    rounds = 1 + np.linspace(-0.01, 0.01, 10)
    return {
        (int(size[1:]), share): value / 1000 * rounds
        for size, values in milliseconds.items()
        for share, value in zip(SHARES, values, strict=True)
    }


@pytest.mark.parametrize(
    ("limit", "shares", "within", "rows"),
    [
        (50, [0.0, 0.0, 0.0], [True] * 3, [[1, 16, 0.0]]),
        (12, [0.0, 0.0, 0.5], [True] * 3, [[1, 4, 0.0], [5, 16, 0.5]]),
        (8, [0.0, 0.5, 1.0], [True, True, False], [[1, 1, 0.0], [2, 4, 0.5], [5, 16, 1.0]]),
        (3, [1.0, 1.0, 1.0], [False] * 3, [[1, 16, 1.0]]),
        (10.03, [0.0, 0.5, 1.0], [True] * 3, [[1, 1, 0.0], [2, 4, 0.5], [5, 16, 1.0]]),  # the median keeps it, barely
    ],
)
def test_the_smallest_share_that_keeps_the_limit_is_chosen(limit, shares, within, rows) -> None:
    found = shares_at_sizes(times(n4=(10, 7, 6), n1=(6, 5, 4), n16=(14, 11, 9)), limit / 1000)
    assert [one.size for one in found] == [1, 4, 16]
    assert [one.chosen for one in found] == shares
    assert [one.within for one in found] == within
    table = load_table(found)
    assert table == rows
    load = LoadRule.parse(table)
    assert [load.share(one.size) for one in found] == shares
    assert load.share(3) == load.share(4)


def test_where_nothing_keeps_the_limit_the_fastest_stands() -> None:
    (one,) = shares_at_sizes(times(n8=(10, 8, 9)), 0.005)
    assert (one.chosen, one.within) == (0.5, False)
    assert one.as_dict()["ms_per_token"]["0.5"][0] == pytest.approx(8, abs=0.1)
