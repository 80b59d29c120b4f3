"""The draw of a token from weights, exactly and at the edges."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.tables import all_of

from cactus_decoding.core.sampling.rows import draw, draw_one

weights_adding_up_to_a_power_of_two = st.lists(st.integers(0, 8), min_size=1, max_size=8).map(
    lambda weights: [*weights, 64 - sum(weights)]
)


@given(weights_adding_up_to_a_power_of_two, st.integers(0, 2**20 - 1))
def test_draw_inverts_the_running_sum_exactly(weights: list[int], numerator: int) -> None:
    # binary fractions throughout, so that nothing is rounded and the edges between tokens are hit exactly
    uniform = Fraction(numerator >> 10, 2**10) if numerator % 2 else Fraction(numerator, 2**20)
    sums = [sum(weights[: i + 1]) for i in range(len(weights))]
    expected = next(i for i, total in enumerate(sums) if total > uniform * 64)
    given_token = draw(torch.tensor(weights, dtype=torch.float64), torch.tensor(float(uniform), dtype=torch.float64))
    assert given_token.item() == expected
    assert weights[expected] > 0


@all_of("scale", [1.0, 1e-300, 1e300, 3.0, 0.1])
@all_of("dtype", [torch.float64, torch.float32])
def test_draw_at_both_ends_skips_tokens_of_weight_zero(scale: float, dtype: torch.dtype) -> None:
    if scale > 1e38 or scale < 1e-38:
        dtype = torch.float64
    weights = torch.tensor([0.0, 0.0, 0.1, 0.0, 0.2, 0.7, 0.0, 0.0], dtype=dtype) * scale
    uniforms = torch.tensor([0.0, 5e-324, 0.5, 1 - 2**-53], dtype=torch.float64)
    assert draw(weights.expand(4, 8), uniforms).tolist() == [2, 2, 5, 5]


def test_draw_from_the_smallest_weight_there_is() -> None:
    # u times the total rounds up to the total itself
    weights = torch.tensor([0.0, 0.0, 5e-324, 0.0], dtype=torch.float64)
    assert draw(weights, torch.tensor(1 - 2**-53, dtype=torch.float64)).item() == 2


def test_draw_never_gives_weight_zero_on_random_rows() -> None:
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(20_000, 30, generator=generator).mul(9).softmax(-1)
    weights[torch.rand(20_000, 30, generator=generator) < 0.6] = 0
    weights[:, 15] += 1e-30
    edges = torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64)
    uniforms = torch.cat([edges.repeat(5_000), torch.rand(10_000, generator=generator, dtype=torch.float64)])
    tokens = draw(weights, uniforms)
    assert (weights.gather(1, tokens.unsqueeze(1)) > 0).all()


def test_draw_takes_leading_dimensions_and_strided_rows() -> None:
    weights = torch.rand(5, 4, 3, generator=torch.Generator().manual_seed(0)).permute(1, 2, 0)
    uniforms = torch.rand(3, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64).T
    tokens = draw(weights, uniforms)
    assert tokens.shape == (4, 3)
    for i in range(4):
        assert tokens[i].tolist() == [draw(weights[i, j], uniforms[i, j]).item() for j in range(3)]


@all_of("length", [5, 4096, 5000, 20_011])
@all_of("dtype", [torch.float32, torch.float64])
def test_a_draw_in_blocks_is_the_draw(length: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(length)
    steep = (torch.randn(length, generator=generator) * 8).softmax(-1).to(dtype)
    few = torch.zeros(length, dtype=dtype)
    few[torch.randint(length, (7,), generator=generator)] = 0.3
    whole = torch.randint(0, 3, (length,), generator=generator).to(dtype)
    for weights in (steep, few, whole, steep.flip(0)):
        sums = weights.double().cumsum(0)
        at_ends = (sums / sums[-1])[torch.randint(length, (100,), generator=generator)]  # where rounding decides
        uniforms = torch.cat([
            torch.rand(300, dtype=torch.float64, generator=generator),
            at_ends.clamp(max=1 - 2**-53),
            (at_ends * (1 - 2**-52)).clamp(max=1 - 2**-53),
            torch.tensor([0.0, 5e-324, 0.5, 1 - 2**-53], dtype=torch.float64),
        ])  # fmt: skip
        expected = [int(draw(weights, uniform)) for uniform in uniforms]
        assert [draw_one(weights, uniform) for uniform in uniforms] == expected


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_draw_in_blocks_from_no_numbers_is_the_draw_too(value: float) -> None:
    weights = torch.ones(5000)
    weights[300] = value
    uniform = torch.tensor(0.7, dtype=torch.float64)
    assert draw_one(weights, uniform) == int(draw(weights, uniform))
