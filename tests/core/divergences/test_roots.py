"""The finder of roots ends in a bracket that no number is left in."""

from __future__ import annotations

import math

import pytest

from cactus_decoding.core.divergences.ratio_clamp import find_root


@pytest.mark.parametrize("root", [-3.0, 0.0, 1e-9, 0.7, 5.0, 9.0])
def test_find_root_closes_the_bracket_or_ends_where_the_root_is_beyond(root: float) -> None:
    for steepness in (1e-3, 1.0, 1e3):
        low, high = find_root(
            lambda x, s=steepness: (
                (math.sinh(s * (x - root)), False) if s < 1e2 else (math.copysign(math.inf, x - root), False)
            ),
            0.0,
            7.0,
            3.0,
            1.0,
        )
        expected = min(max(root, 0.0), 7.0)
        assert low == pytest.approx(expected, abs=1e-12)
        assert high == pytest.approx(expected, abs=1e-12)
        assert low <= high
