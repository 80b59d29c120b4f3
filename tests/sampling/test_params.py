"""Logits to probabilities, against transformers' own warpers; and the draw of a token."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from cactus_decoding.sampling.drawing import draw
from cactus_decoding.sampling.params import SamplingParams


def by_transformers(params: SamplingParams, logits: Tensor) -> Tensor:
    """Return what `generate` samples from: its warpers in its order, then a softmax."""
    scores = logits.clone()
    if params.temperature != 1:
        scores = TemperatureLogitsWarper(params.temperature)(None, scores)
    if params.top_k > 0:
        scores = TopKLogitsWarper(params.top_k)(None, scores)
    if params.top_p < 1:
        scores = TopPLogitsWarper(params.top_p)(None, scores)
    if params.min_p > 0:
        scores = MinPLogitsWarper(params.min_p)(None, scores)
    return scores.softmax(-1)


parameters = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.3, 0.7, 1.0, 1.7]),
    top_k=st.sampled_from([0, 1, 2, 5, 20, 100]),
    top_p=st.sampled_from([0.01, 0.33, 0.8, 0.95, 1.0]),
    min_p=st.sampled_from([0.0, 0.021, 0.13, 1.0]),
)


@given(parameters, st.integers(0, 10_000), st.booleans(), st.sampled_from([torch.float32, torch.float64]))
def test_equals_the_warpers_of_transformers(params: SamplingParams, seed: int, ties: bool, dtype: torch.dtype) -> None:
    logits = torch.randn(6, 20, generator=torch.Generator().manual_seed(seed), dtype=dtype) * 3
    if ties:
        logits = logits.round()
    probs = params(logits)
    expected = by_transformers(params, logits)
    assert probs.dtype == dtype
    assert torch.equal(probs > 0, expected > 0)
    torch.testing.assert_close(probs, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype: torch.dtype) -> None:
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(0)).to(dtype)
    params = SamplingParams(temperature=0.7, top_k=10, top_p=0.9)
    assert torch.equal(params(logits), params(logits.float()))
    assert params(logits).dtype == torch.float32


def test_leading_dimensions_and_excluded_tokens() -> None:
    logits = torch.randn(2, 3, 10, generator=torch.Generator().manual_seed(0))
    logits[..., 4] = -math.inf
    params = SamplingParams(temperature=0.8, top_k=6, top_p=0.9, min_p=0.05)
    probs = params(logits)
    assert (probs[..., 4] == 0).all()
    torch.testing.assert_close(probs.sum(-1), torch.ones(2, 3))
    assert torch.equal(probs[1, 2], params(logits[1, 2]))


def test_temperature_zero_takes_the_first_of_the_most_likely() -> None:
    logits = torch.tensor([[1.0, 5.0, 5.0], [2.0, -1.0, 0.0]])
    for params in (SamplingParams(temperature=0), SamplingParams(temperature=0, top_k=2, top_p=0.5, min_p=0.5)):
        assert params(logits).tolist() == [[0, 1, 0], [1, 0, 0]]


def test_ties_at_the_cuts() -> None:
    logits = torch.tensor([2.0, 2.0, 2.0, 0.0])
    assert (SamplingParams(top_k=1)(logits) > 0).tolist() == [True, True, True, False]
    assert (SamplingParams(min_p=1)(logits) > 0).tolist() == [True, True, True, False]
    assert (SamplingParams(top_p=0.5)(logits) > 0).sum() == 2  # as few as reach top_p, ties or not


@pytest.mark.parametrize(
    ("params", "error", "message"),
    [
        ({"temperature": -0.1}, ValueError, r"temperature must be in \[0, inf\), but is -0\.1"),
        ({"temperature": math.inf}, ValueError, r"temperature must be in \[0, inf\)"),
        ({"temperature": math.nan}, ValueError, "temperature.*nan"),
        ({"temperature": "1"}, TypeError, "temperature must be a number"),
        ({"top_k": -1}, ValueError, "top_k must be at least 0, but is -1"),
        ({"top_k": 2.0}, TypeError, "top_k must be an integer"),
        ({"top_p": 0}, ValueError, r"top_p must be in \(0, 1\], but is 0"),
        ({"top_p": 1.1}, ValueError, r"top_p must be in \(0, 1\]"),
        ({"min_p": -0.1}, ValueError, r"min_p must be in \[0, 1\]"),
        ({"min_p": 1.1}, ValueError, r"min_p must be in \[0, 1\]"),
        ({"min_p": True}, TypeError, "min_p must be a number"),
    ],
)
def test_bad_parameters_are_refused(params: dict[str, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        SamplingParams(**params)


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


@pytest.mark.parametrize("scale", [1.0, 1e-300, 1e300, 3.0, 0.1])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
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
