"""Logits to probabilities, against transformers' own warpers."""

from __future__ import annotations

import math

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

from cactus_decoding.core.sampling.params import SamplingParams


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
