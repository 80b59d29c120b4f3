"""Properties of `verify` that hold for every draw, not only in law."""

from __future__ import annotations

import pytest
import torch
from support.exact_enumeration import make_rows
from support.rules_under_test import (
    LOSSLESS_LIMITS,
    NEVER_STRICTER_THAN_LOSSLESS,
    Altered,
    Always,
    every_rule,
)
from support.tables import all_of
from torch import Tensor

from cactus_decoding.core.rules import parse_rule
from cactus_decoding.core.types import Verification
from cactus_decoding.core.verification.batched import verify

BATCH, PROPOSALS, VOCABULARY = 100, 3, 12


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make_batch(seed: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    target, draft = make_rows(VOCABULARY, BATCH * (PROPOSALS + 1), seed)
    target = target.reshape(BATCH, PROPOSALS + 1, VOCABULARY).to(dtype)
    draft = draft.reshape(BATCH, PROPOSALS + 1, VOCABULARY)[:, :PROPOSALS].to(dtype)
    drafted = torch.multinomial(draft.flatten(0, 1).double(), 1, generator=seeded(seed))
    return target, draft, drafted.reshape(BATCH, PROPOSALS)


def assert_same(given: Verification, expected: Verification) -> None:
    assert torch.equal(given.num_accepted, expected.num_accepted)
    assert torch.equal(given.next_token, expected.next_token)
    assert torch.equal(given.relaxed, expected.relaxed)


@all_of("spelling", LOSSLESS_LIMITS)
@all_of("dtype", [torch.float64, torch.float32])
@all_of("seed", range(5))
def test_rule_without_a_budget_is_lossless_token_for_token(spelling: str, dtype: torch.dtype, seed: int) -> None:
    target, draft, drafted = make_batch(seed, dtype)
    lossless = verify("lossless", target, draft, drafted, seeded(seed))
    assert 0 < lossless.num_accepted.sum() < drafted.numel()
    assert_same(verify(spelling, target, draft, drafted, seeded(seed)), lossless)
    fixed = verify("lossless", target, None, drafted, seeded(seed))
    assert_same(verify(spelling, target, None, drafted, seeded(seed)), fixed)


@every_rule()
def test_relaxed_tokens_are_those_that_lossless_rejects_on_the_same_numbers(spelling: str) -> None:
    target, draft, drafted = make_batch(seed=1)
    result = verify(spelling, target, draft, drafted, seeded(4))
    uniforms = torch.rand(BATCH, PROPOSALS + 1, dtype=torch.float64, generator=seeded(4))[:, :PROPOSALS]
    ids = drafted.unsqueeze(-1)
    lossless = uniforms * draft.gather(-1, ids).squeeze(-1) < target[:, :-1].gather(-1, ids).squeeze(-1)
    accepted = torch.arange(PROPOSALS) < result.num_accepted.unsqueeze(1)
    assert torch.equal(result.relaxed, accepted & ~lossless)
    if spelling in NEVER_STRICTER_THAN_LOSSLESS:
        assert (result.num_accepted >= lossless.long().cumprod(1).sum(1)).all()


@every_rule()
def test_every_rule_draws_the_same_numbers(spelling: str) -> None:
    target, draft, drafted = make_batch(seed=2)
    used, expected = seeded(), seeded()
    verify(spelling, target, draft, drafted, used)
    torch.rand(BATCH, PROPOSALS + 1, dtype=torch.float64, generator=expected)
    assert torch.equal(used.get_state(), expected.get_state())


@every_rule()
@all_of("deterministic", [False, True])
def test_unused_columns_do_not_matter(spelling: str, deterministic: bool) -> None:
    target, draft, drafted = make_batch(seed=3)
    other_target, other_draft, other_drafted = make_batch(seed=4)
    count = torch.randint(0, PROPOSALS + 1, (BATCH,), generator=seeded(5))
    column = torch.arange(PROPOSALS + 1)
    keep = (column <= count.unsqueeze(1)).unsqueeze(-1)  # row i follows i tokens: the bonus token's row is in use
    keep_draft = (column[:-1] < count.unsqueeze(1)).unsqueeze(-1)
    changed = (
        torch.where(keep, target, other_target),
        None if deterministic else torch.where(keep_draft, draft, other_draft),
        torch.where(keep_draft.squeeze(-1), drafted, other_drafted),
    )
    given = verify(spelling, target, None if deterministic else draft, drafted, seeded(6), num_draft_tokens=count)
    assert_same(verify(spelling, *changed, seeded(6), num_draft_tokens=count), given)
    assert (given.num_accepted <= count).all()
    assert not given.relaxed[~keep_draft.squeeze(-1)].any()


def test_bonus_token_of_a_ragged_batch_comes_from_the_row_after_its_last_token() -> None:
    rows = torch.eye(5, dtype=torch.float64)
    target = rows[[1, 2, 3, 4]].expand(4, 4, 5)  # row i of each sequence allows token i + 1 only
    drafted = torch.tensor([[1, 2, 3]]).expand(4, 3)
    result = verify("lossless", target, target[:, :-1], drafted, seeded(), num_draft_tokens=torch.tensor([0, 1, 2, 3]))
    assert result.num_accepted.tolist() == [0, 1, 2, 3]
    assert result.next_token.tolist() == [1, 2, 3, 4]


@every_rule()
def test_uniform_number_zero_accepts_no_token_of_probability_zero(
    spelling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = torch.tensor([[[0.0, 0.7, 0.3], [0.0, 0.5, 0.5]]])
    draft, drafted = torch.tensor([[[0.6, 0.4, 0.0]]]), torch.tensor([[0]])
    monkeypatch.setattr(torch, "rand", lambda *shape, **_: torch.zeros(shape, dtype=torch.float64))
    for rows in (draft, None):
        result = verify(spelling, target, rows, drafted)
        assert result.num_accepted.tolist() == [0]
        assert result.next_token.tolist() != [0]
    # what this catches: u p <= h instead of u p < h
    wrong = Altered(parse_rule(spelling), accept_equality=True)
    assert verify(wrong, target, draft, drafted).num_accepted.tolist() == [1]


def test_without_a_residual_recovery_falls_back_to_the_target_s_support() -> None:
    row = torch.tensor([0.0, 0.0, 0.3, 0.7, 0.0])
    target, draft = row.expand(4000, 2, 5), row.expand(4000, 1, 5)
    result = verify(Always(0.0), target, draft, torch.full((4000, 1), 2), seeded())
    assert (result.num_accepted == 0).all()
    # within 6 standard deviations (false alarm 2e-9) of the target's own law
    assert abs((result.next_token == 3).sum().item() - 2800) < 6 * (4000 * 0.7 * 0.3) ** 0.5
    assert ((result.next_token == 2) | (result.next_token == 3)).all()


@every_rule()
@all_of("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_precision_of_the_input_decides_nothing_but_the_input(spelling: str, dtype: torch.dtype) -> None:
    # rounded rows, handed over in float64, must give the same tokens: all arithmetic is in float64
    target, draft, drafted = make_batch(seed=8, dtype=dtype)
    given = verify(spelling, target, draft, drafted, seeded(9))
    assert_same(verify(spelling, target.double(), draft.double(), drafted, seeded(9), validate=False), given)
    # nor the law of recovery, of which a few draws say little
    rows, more = (target[:, :-1], draft), (target[:, :-1].double(), draft.double())
    rule, first = parse_rule(spelling), drafted.unsqueeze(-1)
    starts = [rule.judge(*each, first).recovers_from(each[0]).double() for each in (rows, more)]
    assert torch.equal(*starts)


@every_rule()
def test_call_without_batch_equals_a_batch_of_one(spelling: str) -> None:
    target, draft, drafted = make_batch(seed=10)
    rows = (target[0], draft[0], drafted[0])
    single = verify(spelling, *rows, seeded())
    batch = verify(spelling, *(part.unsqueeze(0) for part in rows), seeded())
    assert single.num_accepted.shape == single.next_token.shape == ()
    assert_same(Verification(*(part.unsqueeze(0) for part in single)), batch)
    short = verify(spelling, *rows, seeded(), num_draft_tokens=torch.tensor(1))
    assert short.num_accepted <= 1


@every_rule()
def test_no_proposals_and_no_sequences_are_allowed(spelling: str) -> None:
    target, draft, drafted = make_batch(seed=11)
    nothing_drafted = verify(spelling, target[:, :1], draft[:, :0], drafted[:, :0], seeded())
    assert (nothing_drafted.num_accepted == 0).all()
    assert target[:, 0].gather(1, nothing_drafted.next_token.unsqueeze(1)).gt(0).all()
    assert verify(spelling, target[:0], draft[:0], drafted[:0], seeded()).next_token.shape == (0,)


@every_rule()
def test_layout_and_type_of_the_ids_do_not_matter(spelling: str) -> None:
    target, draft, drafted = make_batch(seed=12)
    strided = [part.transpose(0, -1).contiguous().transpose(0, -1) for part in (target, draft, drafted)]
    assert not strided[0].is_contiguous()
    expected = verify(spelling, target, draft, drafted, seeded())
    assert_same(verify(spelling, *strided[:2], strided[2].int(), seeded()), expected)
