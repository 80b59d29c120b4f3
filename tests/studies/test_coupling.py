"""The study of coupled verification: the formula of acceptance, and tokens per step."""

from __future__ import annotations

import pytest
import torch

from cactus_decoding import load_pair
from cactus_decoding.zoo.word_problems import word_problems
from studies.coupling.cost import agreement, chances, overlap, timed, tokens_per_step


def test_agreement_is_the_formula_of_every_token() -> None:
    generator = torch.Generator().manual_seed(0)
    target, draft = (torch.rand(2, 40, 30, generator=generator, dtype=torch.float64) ** 4).unbind(0)
    target[:, ::7] = 0
    draft[:, ::5] = 0
    target, draft = (each / each.sum(-1, keepdim=True) for each in (target, draft))
    found, most = agreement(target, draft), overlap(target, draft)
    for p, q, sorted_sum in zip(draft, target, found, strict=True):
        both = [i for i in range(len(p)) if p[i] > 0 and q[i] > 0]
        plain = sum(1 / float(torch.maximum(p / p[i], q / q[i]).sum()) for i in both)
        assert float(sorted_sum) == pytest.approx(plain, abs=1e-12)
    assert (found <= most + 1e-12).all()
    assert (found >= most / (2 - most) - 1e-12).all()
    torch.testing.assert_close(agreement(target, target), torch.ones(40, dtype=torch.float64))


def test_tokens_per_step_of_equal_chances() -> None:
    texts = [{"token": torch.full((3000,), 0.5), "coupled": torch.full((3000,), 0.25)} for _ in range(6)]
    found = tokens_per_step(texts)
    assert found["acceptance"] == {"token": 0.5, "coupled": 0.25}
    assert found["tokens per step of 3"]["token"] == pytest.approx(1.875, abs=0.01)
    assert found["coupled over token, 3"][0] == pytest.approx((1 + 0.25 + 0.25**2 + 0.25**3) / 1.875, abs=0.01)


@pytest.mark.slow
def test_a_pair_is_measured() -> None:
    pair, prompt = load_pair(), next(word_problems("validation")).prompt
    found = chances(pair, prompt, 20, 0)
    assert {len(each) for each in found.values()} == {20}
    assert (found["two draws"] <= found["coupled"] + 1e-9).all()
    assert (found["coupled"] <= found["token"] + 1e-9).all()
    ways = dict(timed(pair, prompt, 20, 0))
    assert len(ways) == 9
    assert all(milliseconds > 0 for steps in ways.values() for *_, milliseconds in steps)
