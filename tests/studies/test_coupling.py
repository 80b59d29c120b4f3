"""The study of coupled verification: the formula of acceptance, tokens per step, and widths of intervals."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.result_files import made

from cactus_decoding import load_pair
from cactus_decoding.lab.evaluation.intervals import paired_difference
from cactus_decoding.zoo.word_problems import word_problems
from studies.coupling.cost import agreement, chances, overlap, timed, tokens_per_step
from studies.coupling.intervals import lossless_that_differ, same_problems, widths


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


def test_widths_are_those_of_each_seed_and_verification() -> None:
    results = [
        made(rule, 4, right=right, seed=seed, verification=how, problems=problems)
        for rule, right in (("lossless", 0.9), ("clamped:width=1.0", 0.8))
        for seed in (0, 1)
        for how, problems in (("token", 60), ("coupled", 40))
    ]
    cut = same_problems(results)
    assert {result.config.problems for result in cut} == {40}
    rows = widths(cut)
    assert [(row["rule"], row["verification"]) for row in rows] == [
        ("clamped:width=1.0", "token"),
        ("clamped:width=1.0", "coupled"),
    ]
    (lossless, relaxed) = (result for result in cut if result.config.seed == 0 and result.config.coupled)
    expected = paired_difference(relaxed.column("right") - lossless.column("right"))
    assert rows[1]["score_difference"] == [round(expected.value, 4)] * 2
    assert rows[1]["mean_half_width"] == pytest.approx((expected.high - expected.low) / 2, abs=1e-4)
    assert {row["proposals"] for row in rows} == {4}
    assert lossless_that_differ(cut) == []
    longer = made("lossless", 8, right=0.5, problems=40, verification="coupled")
    found = lossless_that_differ([*cut, longer])
    assert found == [round(float((lossless.column("right") != longer.column("right")).mean()), 4)]
    other = replace(results[0], answers=results[0].answers | {"id": [str(i + 1) for i in range(60)]})
    with pytest.raises(ValueError, match="different problems"):
        same_problems([*results[1:], other])
