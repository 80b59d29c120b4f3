"""Logits to rows, against transformers' own warpers; rows in few entries; truncation without a sort."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.tables import all_of
from torch import Tensor
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from cactus_decoding.core.sampling import params as sampling_module
from cactus_decoding.core.sampling.params import LARGE_VOCABULARY, SamplingParams, at_least, largest
from cactus_decoding.core.sampling.rows import LazyRows, SparseProbs


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


SAMPLINGS = [SamplingParams(), SamplingParams(temperature=0), SamplingParams(temperature=0.6, top_p=0.9, top_k=20)]


@all_of("dtype", [torch.float32, torch.float64])
def test_kept_rows_keep_every_bit(dtype: torch.dtype) -> None:
    dense, sparse = torch.rand(50).to(dtype).softmax(-1), torch.zeros(50, dtype=dtype)
    sparse[[3, 7]] = torch.tensor([0.3, 0.7], dtype=dtype)
    for row, is_sparse in ((dense, False), (sparse, True)):
        kept = SparseProbs.keep(row)
        assert (kept.token_ids is not None) == is_sparse
        assert kept.vocabulary == 50
        assert kept.dense().dtype == dtype
        assert torch.equal(kept.dense(), row)
        assert kept.nbytes == (2 * (row.itemsize + 4) if is_sparse else 50 * row.itemsize)
    rows = torch.rand(2, 50)
    kept = SparseProbs.keep(rows[0])
    assert kept.probs.untyped_storage().nbytes() == 50 * 4  # no more than the row is held on to
    rows.zero_()
    assert kept.dense().count_nonzero() == 50  # and a copy of it


def test_a_sparse_row_knows_of_each_token_what_the_dense_one_does() -> None:
    row = torch.zeros(10)
    row[[2, 5, 6]] = torch.tensor([0.5, 0.25, 0.25])
    for probs in (
        SparseProbs.keep(row),
        SparseProbs(10, row[[2, 5, 6]], torch.tensor([2, 5, 6])),
        SparseProbs(10, row),
    ):
        assert probs.mass(torch.tensor([0, 5, 9])) == 0.25
        assert probs.mass(torch.tensor([2, 3, 6])) == 0.75
        assert probs.mass(torch.tensor([9])) == 0
        for token in range(10):
            assert probs.probability(token) == row[token]
            listing, (place,) = probs.including([token])
            assert listing.probs[place] == row[token]
            assert torch.equal(listing.dense(), row)
            listed = torch.arange(10.0) if listing.token_ids is None else listing.token_ids.float()
            assert torch.equal(listing.restrict(torch.arange(10.0)), listed)
            assert listed[place] == token
            assert listing.draw(torch.eye(len(listed))[place], torch.tensor(0.5)) == token
        for tokens in ([9, 0, 5], [4, 6, 2, 3], [8, 7]):  # none twice, wherever those before it were added
            listing, places = probs.including(tokens)
            assert torch.equal(listing.probs[places], row[tokens])
            assert torch.equal(listing.restrict(torch.arange(10))[places], torch.tensor(tokens))
            assert len(listing.restrict(torch.arange(10)).unique()) == len(listing.probs)
        assert probs.draw(torch.full_like(probs.probs, torch.nan), torch.tensor(0.5)) == 10


@all_of("sampling", SAMPLINGS)
@all_of("vocabulary", [60, LARGE_VOCABULARY])
def test_lazy_rows_are_those_of_the_whole_block(vocabulary: int, sampling: SamplingParams) -> None:
    logits = torch.randn(3, vocabulary, generator=torch.Generator().manual_seed(0)) * 3
    lazy = LazyRows(logits, sampling)
    for i in (2, 0):
        torch.testing.assert_close(lazy.at(i).dense(), sampling(logits)[i], rtol=0, atol=0)
    assert (lazy.at(1).token_ids is not None) == (vocabulary == LARGE_VOCABULARY and sampling.truncates)


def rows(length: int, seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    plain = torch.randn(length, generator=generator) * 3
    crowded = torch.zeros(length)
    crowded[:: max(length // 50, 1)] = torch.arange(len(crowded[:: max(length // 50, 1)])).float()
    return [plain, plain.bfloat16().float(), plain.round(), crowded, plain.sort().values, torch.zeros(length)]


@pytest.mark.parametrize("length", [1, 63, 64, 500, 6_400, 20_011])
def test_largest_are_those_of_the_sorted_row_and_their_ties(length: int) -> None:
    for seed in range(3):
        for row in rows(length, seed):
            for count in {1, min(2, length), min(20, length), min(300, length), length}:
                kth = row.sort(descending=True).values[count - 1]
                ids, values = largest(row, count)
                assert torch.equal(ids.sort().values, (row >= kth).nonzero().squeeze(1))
                assert torch.equal(ids, ids.sort().values)
                assert torch.equal(values, row[ids])


def test_entries_that_scaling_makes_equal_are_ties() -> None:
    row = torch.randn(20_000, generator=torch.Generator().manual_seed(0))
    ids, values = largest(row, 5, torch.round)
    assert torch.equal(ids, (row.round() >= row.round().max()).nonzero().squeeze(1))
    assert (values == row.round().max()).all()


@pytest.mark.parametrize("floor", [-math.inf, 0.0, 5.0, 100.0])
def test_at_least_is_the_comparison(floor: float) -> None:
    for row in rows(6_500, 1):
        ids, values = at_least(row, floor)
        assert torch.equal(ids.sort().values, (row >= floor).nonzero().squeeze(1))
        assert torch.equal(values, row[ids])


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.6, top_p=0.95, top_k=20),
        SamplingParams(top_k=50),
        SamplingParams(top_k=3000, top_p=0.8),
        SamplingParams(temperature=0.7, top_p=0.9),
        SamplingParams(temperature=1.5, top_p=0.999),
        SamplingParams(min_p=0.05),
        SamplingParams(temperature=0.7, top_p=0.9, min_p=0.05),
        SamplingParams(temperature=0),
    ],
    ids=str,
)
@all_of("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_long_rows_are_truncated_as_by_the_sort(
    params: SamplingParams, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = (torch.randn(2, 3, LARGE_VOCABULARY + 5, generator=generator) * 3).to(dtype)
    fast = params(logits)
    monkeypatch.setattr(sampling_module, "LARGE_VOCABULARY", math.inf)
    plain = params(logits)
    assert fast.dtype == plain.dtype
    # which of equally likely tokens top-p keeps is open, hence sorted
    assert torch.equal((fast > 0).sum(-1), (plain > 0).sum(-1))
    torch.testing.assert_close(fast.sort(-1).values, plain.sort(-1).values, rtol=1e-5, atol=1e-7)
    if dtype != torch.bfloat16:
        torch.testing.assert_close(fast, plain, rtol=1e-5, atol=1e-7)
