"""The largest entries of long rows and truncation without a sort, against the whole row's sort."""

from __future__ import annotations

import math

import pytest
import torch
from support.tables import all_of
from torch import Tensor

from cactus_decoding.core.sampling import params as sampling_module
from cactus_decoding.core.sampling.params import LARGE_VOCABULARY, SamplingParams, at_least, largest


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
