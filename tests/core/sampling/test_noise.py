"""Shared noise: the published formula, the distribution of what it draws, and how often two rows agree."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import binom
from support.chi_square import FALSE_ALARM, rejects_counts
from torch import Tensor

from cactus_decoding.core.sampling.noise import SharedNoise, SharedNumbers
from cactus_decoding.core.sampling.params import SamplingParams
from cactus_decoding.core.sampling.rows import SparseProbs

DRAWS = 20_000


def philox(key: tuple[int, int], counter: tuple[int, int, int, int]) -> list[int]:
    """Return the block of Philox-4x64-10 for a counter, by the formula of Salmon et al. (2011)."""
    mask, (k0, k1), (c0, c1, c2, c3) = 2**64 - 1, key, counter
    for _ in range(10):
        first, second = 0xD2E7470EE14C6C93 * c0, 0xCA5A826395121157 * c2
        c0, c1, c2, c3 = (second >> 64) ^ c1 ^ k0, second & mask, (first >> 64) ^ c3 ^ k1, first & mask
        k0, k1 = (k0 + 0x9E3779B97F4A7C15) & mask, (k1 + 0xBB67AE8584CAA73B) & mask
    return [c0, c1, c2, c3]


def test_the_formula_gives_its_published_vectors() -> None:
    assert philox((0, 0), (0, 0, 0, 0)) == [
        0x16554D9ECA36314C,
        0xDB20FE9D672D0FDC,
        0xD7E772CEE186176B,
        0x7E68B68AEC7BA23B,
    ]
    ones = 2**64 - 1
    assert philox((ones, ones), (ones, ones, ones, ones)) == [
        0x87B092C3013FE90B,
        0x438C3C67BE8D0224,
        0x9CC7D7C69CD777B6,
        0xA09CAEBF594F0BA0,
    ]


@pytest.mark.parametrize(("seed", "place"), [(0, 0), (1, 7), (2**63 - 1, 12_345)])
def test_numbers_are_those_of_the_formula(seed: int, place: int) -> None:
    # NumPy counts up before it makes a block, and keeps the upper 53 bits of each number
    expected = [word for block in range(3) for word in philox((seed, 0), (block + 1, place, 0, 0))]
    expected_uniforms = [(word >> 11) * 2.0**-53 + 2.0**-54 for word in expected]
    assert SharedNoise(seed).uniforms(place, 12).tolist() == expected_uniforms


def test_a_number_depends_on_seed_place_and_token_alone() -> None:
    noise = SharedNoise(3)
    whole = noise.uniforms(5, 1000)
    assert np.array_equal(SharedNoise(3).uniforms(5, 10), whole[:10])
    assert not np.isin(whole, noise.uniforms(6, 1000)).any()
    assert not np.isin(whole, SharedNoise(4).uniforms(5, 1000)).any()
    assert 0 < whole.min() < whole.max() <= 1


def test_numbers_that_are_kept_are_those_that_are_made() -> None:
    kept = SharedNoise(3)
    for place, count in ((0, 4), (0, 9), (0, 2), *((place, 5) for place in range(40)), (0, 9), (38, 3)):
        assert np.array_equal(kept.uniforms(place, count), SharedNoise(3).uniforms(place, count))


def counts(draw, vocabulary: int) -> Tensor:
    return torch.tensor([draw(place) for place in range(DRAWS)]).bincount(minlength=vocabulary)


def test_tokens_follow_the_row() -> None:
    row, noise = torch.tensor([0.4, 0.3, 0.15, 0.1, 0.04, 0.01], dtype=torch.float64), SharedNoise(11)
    assert not rejects_counts(counts(lambda place: noise.token(row, place), 6), row)
    # with the same numbers as times that are uniform, not exponential, likely tokens are drawn too often
    wrong = counts(lambda place: int((row.numpy() / noise.uniforms(place, 6)).argmax()), 6)
    assert rejects_counts(wrong, row)


def test_bounds_leave_the_first_token() -> None:
    generator = torch.Generator().manual_seed(0)
    for place in range(300):
        row = torch.randn(50, generator=generator).mul(3).softmax(-1)
        noise = SharedNoise(place)
        times = -np.log1p(-noise.uniforms(place, 50))
        assert noise.token(row, place) == (row.double().numpy() / times).argmax()
        assert noise.tokens(row, place, 50) == np.argsort(times / row.double().numpy()).tolist()


def test_rows_in_any_form_give_one_token() -> None:
    logits, noise = torch.randn(5000, generator=torch.Generator().manual_seed(1)) * 3, SharedNoise(5)
    for sampling in (SamplingParams(top_k=7), SamplingParams(0.7, top_p=0.9), SamplingParams(0.0)):
        dense = sampling(logits)
        ids, probs = sampling.sparse_row(logits)
        sparse = SparseProbs(5000, probs, ids)
        for place in range(50):
            token = noise.token(dense, place)
            assert noise.token_of(sparse, probs, place) == token
            assert noise.token(3 * dense.double(), place) == token
            assert noise.tokens(dense, place, 1) == [token]


@pytest.mark.parametrize("bad", [torch.zeros(4), torch.full((4,), torch.nan), torch.tensor([0.5, torch.inf, 0.0, 0.0])])
def test_weights_that_are_no_row_give_no_token(bad: Tensor) -> None:
    noise = SharedNoise(0)
    assert noise.token(bad, 0) == 4
    assert noise.token_of(SparseProbs(9, bad, torch.tensor([1, 3, 5, 7])), bad, 0) == 9


def agreement(p: Tensor, q: Tensor) -> float:
    return sum(1 / float(torch.maximum(p / p[i], q / q[i]).sum()) for i in range(len(p)))


def test_two_rows_agree_as_often_as_the_formula_says() -> None:
    p = torch.tensor([0.5, 0.2, 0.2, 0.1], dtype=torch.float64)
    q = torch.tensor([0.3, 0.4, 0.1, 0.2], dtype=torch.float64)
    noise, others, expected = SharedNoise(2), SharedNoise(3), agreement(p, q)
    distance = float((p - q).abs().sum() / 2)
    assert (1 - distance) / (1 + distance) <= expected <= 1 - distance

    def chance(other: SharedNoise) -> float:
        found = sum(noise.token(p, place) == other.token(q, place) for place in range(DRAWS))
        return 2 * float(min(binom.cdf(found, DRAWS, expected), binom.sf(found - 1, DRAWS, expected)))

    assert chance(noise) > FALSE_ALARM
    assert chance(others) < FALSE_ALARM


def test_a_step_takes_one_number_for_each_place() -> None:
    noise, row = SharedNoise(7), torch.full((100,), 0.01)
    numbers = SharedNumbers(noise, 4)
    tokens = [numbers.token(row) for _ in range(3)]
    assert tokens == [noise.token(row, place) for place in (4, 5, 6)]
    assert [numbers.again().token(row), numbers.token(row)] == [noise.token(row, 7)] * 2


def test_it_is_a_generator_and_is_made_of_one() -> None:
    noise = SharedNoise(9)
    assert torch.equal(torch.rand(3, generator=noise), torch.rand(3, generator=torch.Generator().manual_seed(9)))
    assert SharedNoise.of(noise, torch.device("cpu")) is noise
    made = [SharedNoise.of(torch.Generator().manual_seed(seed), torch.device("cpu")) for seed in (1, 1, 2)]
    assert made[0].seed_of_noise == made[1].seed_of_noise != made[2].seed_of_noise
