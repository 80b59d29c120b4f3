"""Costs of rows that float32 has rounded are those of the laws that tokens are drawn from; a limit of 0 admits none."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
import torch
from support.decisions import afforded_in_turn, plan
from support.loop_runs import PROMPT
from support.rules_under_test import SPELLINGS, every_rule
from support.tables import all_of
from support.tiny_models import tiny_llama
from torch import Tensor

from cactus_decoding import Budget, Proposal, Request, SamplingParams, audit, parse_rule
from cactus_decoding.core.checks import check_probabilities, sum_tolerance
from cactus_decoding.core.divergences.rows import kl_of_rows, normalised
from cactus_decoding.core.rules.base import GreedyRule, row_rule
from cactus_decoding.core.sampling.params import SamplingFn
from cactus_decoding.core.sampling.rows import SparseProbs
from cactus_decoding.engines.vllm.step import afforded
from cactus_decoding.lab.tracing import PositionRows, what_if

ORDINARY = [text for text in SPELLINGS if not isinstance(parse_rule(text), GreedyRule)]
LARGE = (152_064, 256_000)


def exact_kl(row: Tensor, target: Tensor) -> float:
    """Return the KL of two rows' laws with 60 digits; a row's law is what it is proportional to."""
    with mpmath.workdps(60):
        h, q = ([mpmath.mpf(x) for x in each.double().tolist()] for each in (row, target))
        on_h, on_q = mpmath.fsum(h), mpmath.fsum(q)
        terms = (x / on_h * mpmath.log((x / on_h) / (y / on_q)) for x, y in zip(h, q, strict=True) if x > 0)
        return float(mpmath.fsum(terms))


def long_kl(row: Tensor, target: Tensor) -> float:
    """Return the same in 80-bit numbers, for rows too long for `exact_kl`."""
    h, q = (each.double().numpy().astype(np.longdouble) for each in (row, target))
    h, q = h / h.sum(), q / q.sum()
    inside = h > 0
    return float((h[inside] * np.log(h[inside] / q[inside])).sum())


def pair_of_rows(vocabulary: int, seed: int = 0, apart: float = 0.5, sharpness: float = 3.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = sharpness * torch.randn(1, vocabulary, generator=generator)
    other = logits + apart * torch.randn(1, vocabulary, generator=generator)
    return logits.softmax(-1), other.softmax(-1)


def verifier_of(rule: str, budget: float | Budget | None, sampling: SamplingParams | None = None):
    sampling = sampling or SamplingParams()
    plain = SamplingFn(SamplingParams())
    return Request(rule, budget, sampling=sampling).verifier(SamplingFn(sampling), plain, sampling)


# --- costs ---


@all_of("seed", range(20))
def test_kl_of_rounded_rows_is_that_of_their_laws(seed: int) -> None:
    target, draft = pair_of_rows(8, seed, apart=10.0 ** -(seed % 8))
    assert kl_of_rows(normalised(draft), normalised(target)).item() == pytest.approx(
        exact_kl(draft[0], target[0]), abs=1e-15
    )


def test_rows_off_1_cost_the_square_of_it_and_not_itself() -> None:
    target, draft = (rows.double() for rows in pair_of_rows(8))
    whole = kl_of_rows(normalised(draft), normalised(target)).item()
    for off in (1e-5, -1e-5):
        cost = kl_of_rows(normalised(draft), normalised(target) * (1 + off)).item()
        assert cost == pytest.approx(whole + off**2 / 2, abs=1e-14)
        assert cost >= whole


@pytest.mark.parametrize("vocabulary", LARGE)
@pytest.mark.parametrize("rule", ["clamped:width=1", "cactus:delta=1", "ensemble:weight=0.3", "lenience:lenience=0.5"])
def test_the_meter_charges_large_rows_exactly(rule: str, vocabulary: int) -> None:
    generator = torch.Generator().manual_seed(1)
    logits = 3 * torch.randn(2, vocabulary, generator=generator)
    draft = (logits[:1] + 0.5 * torch.randn(1, vocabulary, generator=generator)).softmax(-1)
    token = int(draft.argmax())
    target = logits.softmax(-1)
    assert abs(target[0].double().sum().item() - 1) > 1e-7, "rows that sum to 1 would show nothing"
    verifier = verifier_of(rule, math.inf)
    _, outcome = verifier(verifier.begin(), logits, [3, token], Proposal([token], draft), generator)
    emitted = audit(rule, target[:1], draft).output_probs[0]
    assert outcome.visits[0].nats == pytest.approx(long_kl(emitted, target[0]), abs=1e-12)


@pytest.mark.parametrize("vocabulary", LARGE)
@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("sharpness", [0.1, 3.0])
def test_honest_rows_of_large_vocabularies_are_audited(vocabulary: int, kind: torch.dtype, sharpness: float) -> None:
    target, draft = (rows.to(kind) for rows in pair_of_rows(vocabulary, 2, sharpness=sharpness))
    result = audit("lossless", target, draft)
    # the law of a lossless step is the target's, whatever its row sums to
    assert result.output_probs.sum().item() == pytest.approx(1, abs=1e-12)
    assert result.kl.item() < 1e-12
    assert result.acceptance.item() <= 1
    kept = PositionRows(int(draft.argmax()), SparseProbs.keep(target[0]), SparseProbs.keep(draft[0]))
    seen = what_if(kept, "cactus:delta=0.5,solver=exact")
    assert 0 < seen.conditional_nats <= 0.5 * (1 + 1e-9)
    assert seen.emitted_nats == pytest.approx(
        audit("cactus:delta=0.5,solver=exact", target, draft).kl.item(), abs=1e-12
    )


def test_a_head_that_hides_its_tail_from_float32_is_honest_too() -> None:
    # numbers below 2^-25 of the sum vanish when they are added one by one: as far off as such a sum can be
    logits = torch.zeros(1, 256_000)
    logits[0, 0] = 17.5
    parts = logits.exp()
    total = torch.from_numpy(np.add.accumulate(parts[0].numpy())[-1:].copy())
    row = parts / total
    missing = abs(row.sum(dtype=torch.float64).item() - 1)
    assert 5e-3 < missing < sum_tolerance(torch.float32, 256_000)
    check_probabilities("row", row)
    check_probabilities("row", row.double())


@pytest.mark.parametrize("vocabulary", [8, 200, 1000, 50_000])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_rows_that_were_widened_or_made_by_a_logsumexp_are_honest(vocabulary: int, dtype: torch.dtype) -> None:
    for seed in range(20):
        logits = 2 * torch.randn(vocabulary, generator=torch.Generator().manual_seed(seed))
        rows = [logits.to(dtype).softmax(-1).float(), logits.to(dtype).softmax(-1).double()]
        if dtype == torch.float32:
            rows += [(logits + level - (logits + level).logsumexp(-1)).exp() for level in (0.0, 50.0, 500.0)]
        for row in rows:
            assert audit("lossless", row, row).kl.item() == 0


@pytest.mark.parametrize(("vocabulary", "off"), [(8, 5e-3), (8, -5e-3), (1000, 5e-3), (152_064, 0.02)])
def test_rows_that_no_rounding_explains_are_refused(vocabulary: int, off: float) -> None:
    row = pair_of_rows(vocabulary)[0] * (1 + off)
    with pytest.raises(ValueError, match="every row of target_probs must sum to 1"):
        audit("lossless", row, row)


@every_rule(ORDINARY, "rule")
def test_what_float32_lost_does_not_change_an_audit(rule: str) -> None:
    target, draft = (normalised(rows) for rows in pair_of_rows(64, 3))
    exact, scaled = audit(rule, target, draft), audit(rule, target * (1 + 1e-6), draft * (1 - 1e-6))
    torch.testing.assert_close(scaled.output_probs, exact.output_probs, rtol=0, atol=1e-12)
    torch.testing.assert_close(scaled.kl, exact.kl, rtol=0, atol=1e-10)


# --- a limit of 0 ---

NOTHING = [0, 0.0, Budget(nats=0), Budget(max_shift=0)]


def near_equal_rows(count: int = 400) -> tuple[Tensor, Tensor, Tensor]:
    """Return logits, and rows of a draft that differ from their softmax in float32's last digits."""
    generator = torch.Generator().manual_seed(4)
    logits = torch.randn(count, 8, generator=generator)
    draft = (logits + 1e-7 * torch.randn(count, 8, generator=generator)).softmax(-1)
    return logits, draft, torch.multinomial(draft, 1, generator=generator).squeeze(1)


@pytest.mark.parametrize("budget", NOTHING, ids=str)
def test_every_spelling_of_nothing_is_a_limit_of_0(budget: float | Budget) -> None:
    assert Request("cactus:delta=1", budget).budget.limit == 0


def in_blocks(rule: str) -> bool:
    return row_rule(parse_rule(rule)) is not None


@every_rule(ORDINARY, "rule")
@pytest.mark.parametrize("verification", ["token", "block"])
def test_a_limit_of_0_decides_as_the_lossless_rule_to_the_last_bit(rule: str, verification: str) -> None:
    if verification == "block" and not in_blocks(rule):
        return  # refused by name
    logits, draft, drafted = near_equal_rows(40)
    plain = SamplingFn(SamplingParams())
    for first in range(0, 40, 4):
        rows, ids = torch.cat([logits[first : first + 4], logits[:1]]), drafted[first : first + 4].tolist()
        decided = []
        for each in (rule, "lossless"):
            verifier = Request(each, 0.0, verification=verification).verifier(plain, plain)
            generator = torch.Generator().manual_seed(first)
            state, outcome = verifier(
                verifier.begin(), rows, [1, *ids], Proposal(ids, draft[first : first + 4]), generator
            )
            assert state.spent == 0
            decided.append((outcome.path, outcome.next_token, [visit.relaxed for visit in outcome.visits]))
        assert decided[0] == decided[1]


def test_both_meters_admit_nothing_once_a_budget_is_used_up() -> None:
    costs = [0.25, 0.0, 0.5, 0.25, 0.0, 1e-300]
    for limit, spent in ((0.0, 0.0), (0.5, 0.5), (0.5, 0.0), (math.inf, 0.0), (math.inf, 3.0)):
        mine = afforded_in_turn(costs, limit, spent)
        theirs = afforded(*(torch.tensor(x, dtype=torch.float64) for x in ([costs], [spent], [limit])))
        assert [mine] == theirs.tolist()
        assert any(mine) == (limit > spent)
    only_measured = afforded_in_turn([math.inf, 0.1], math.inf)
    assert only_measured == [True, True]


def test_where_nothing_is_given_up_nothing_fell_back() -> None:
    rows = torch.eye(3).double()
    planned = plan(parse_rule("cactus:delta=1"), rows, rows, torch.arange(3), limit=0.0)
    assert planned.costs == [0, 0, 0]
    assert not any(planned.fell_back)


def test_a_response_in_float32_spends_what_its_laws_are_apart() -> None:
    target = tiny_llama(0, 64).float()
    logits = target(torch.tensor([PROMPT])).logits[0, -1:].detach()
    draft = (logits + torch.randn(1, 64, generator=torch.Generator().manual_seed(0))).softmax(-1)
    verifier, token = verifier_of("clamped:width=1", 5.0), int(draft.argmax())
    rows = torch.cat([logits, logits])
    state, outcome = verifier(verifier.begin(), rows, [*PROMPT, token], Proposal([token], draft), None)
    emitted = audit("clamped:width=1", logits.softmax(-1), draft).output_probs[0]
    assert state.spent == outcome.visits[0].nats == pytest.approx(exact_kl(emitted, logits.softmax(-1)[0]), abs=1e-13)
