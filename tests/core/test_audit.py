"""The audit beyond small float64 rows: layouts, precisions, large vocabularies, and rules that break the support."""

from __future__ import annotations

import math

import pytest
import torch
from support.exact_enumeration import enumerate_tokens, make_rows
from support.rules_under_test import Always, every_rule
from support.tables import all_of

from cactus_decoding.core.audit import Audit, audit
from cactus_decoding.core.rules import parse_rule


def assert_same(given: Audit, expected: Audit) -> None:
    """Compare audits up to the order of their sums, which the memory layout decides."""
    for name, value in vars(expected).items():
        if name == "min_log_ratio":  # as a ratio: a token that is hardly ever emitted has no digits to log
            torch.testing.assert_close(given.min_log_ratio.exp(), value.exp(), rtol=0, atol=1e-13)
        else:
            torch.testing.assert_close(getattr(given, name), value, rtol=0, atol=1e-13)


@every_rule()
def test_layout_and_leading_dimensions_do_not_matter(spelling: str) -> None:
    target, draft = make_rows(6, 12, seed=7)
    flat = audit(spelling, target, draft)
    shaped = audit(spelling, target.reshape(3, 4, 6), draft.reshape(3, 4, 6))
    assert_same(Audit(**{name: value.flatten(0, 1) for name, value in vars(shaped).items()}), flat)
    strided_target, strided_draft = (rows.T.contiguous().T for rows in (target, draft))
    assert not strided_target.is_contiguous()
    assert_same(audit(spelling, strided_target, strided_draft), flat)
    one_target = target[:1].expand(12, 6)  # no memory of its own
    assert_same(audit(spelling, one_target, draft), audit(spelling, one_target.contiguous(), draft))
    one = audit(spelling, target[3], draft[3])
    assert one.kl.shape == ()
    torch.testing.assert_close(one.output_probs, flat.output_probs[3], rtol=0, atol=1e-13)


@every_rule()
@all_of("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_rounded_rows_are_audited_in_float64(spelling: str, dtype: torch.dtype) -> None:
    target, draft = (rows.to(dtype) for rows in make_rows(9, 20, seed=8))
    result = audit(spelling, target, draft)
    assert all(value.dtype == torch.float64 for value in vars(result).values())
    # tokens are drawn in proportion to rows: rounded ones that do not sum to 1 are no laws yet
    laws = (rows.double() / rows.double().sum(-1, keepdim=True) for rows in (target, draft))
    output, accepted = enumerate_tokens(parse_rule(spelling), *laws)
    torch.testing.assert_close(result.output_probs, output, rtol=0, atol=1e-12)
    torch.testing.assert_close(result.acceptance, accepted.sum(-1), rtol=0, atol=1e-12)


@every_rule()
def test_vocabulary_of_one_token(spelling: str) -> None:
    row = torch.ones(1, dtype=torch.float64)
    for given in ({"draft_probs": row}, {"draft_token_ids": torch.tensor(0, dtype=torch.int32)}):
        result = audit(spelling, row, **given)
        assert result.output_probs.tolist() == [1.0]
        assert result.acceptance.item() == 1.0
        assert result.kl.item() == result.tv.item() == result.max_log_ratio.item() == result.min_log_ratio.item() == 0


def test_cactus_can_emit_more_than_its_budget_on_average_over_the_draft() -> None:
    # the budget holds given the drafted token; what is emitted is audited because it does not hold there
    target, draft = make_rows(50, 200, seed=10)
    assert (audit("cactus:delta=0.01,solver=exact", target, draft).kl > 0.01).any()


def test_without_a_residual_the_target_is_emitted() -> None:
    row = torch.tensor([0.0, 0.3, 0.7], dtype=torch.float64)
    result = audit(Always(0.0), row, row)
    torch.testing.assert_close(result.output_probs, row, rtol=0, atol=1e-15)
    assert result.acceptance.item() == 0


def test_token_that_is_never_emitted_has_a_ratio_of_zero() -> None:
    target, draft = torch.tensor([0.6, 0.3, 0.1]), torch.tensor([0.2, 0.2, 0.6])
    result = audit("top_k:k=2", target, draft)
    assert result.min_log_ratio.item() == -math.inf
    assert result.kl.isfinite()


def test_emission_outside_the_target_s_support_costs_infinitely_much() -> None:
    target, draft = torch.tensor([[0.5, 0.5, 0.0], [0.5, 0.5, 0.0]]), torch.tensor([[0.5, 0.3, 0.2], [0.5, 0.5, 0.0]])
    result = audit(Always(1.0), target, draft)  # which emits tokens that the target excludes
    torch.testing.assert_close(result.output_probs, draft.double())
    assert result.kl.tolist() == [math.inf, 0.0]
    assert result.max_log_ratio.tolist() == [math.inf, 0.0]
    assert result.tv.tolist() == pytest.approx([0.2, 0.0])


def test_no_rows_are_audited_as_none():
    rows = torch.zeros(0, 5, dtype=torch.float64)
    for rule in ("lossless", "cactus:delta=1.0", "top_k:k=2"):
        result = audit(rule, rows, rows)
        assert (result.kl.shape, result.output_probs.shape) == ((0,), (0, 5))
