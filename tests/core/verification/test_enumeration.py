"""Exact tests: every drafted token is enumerated on small vocabularies, in float64, to 1e-12."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.any_rule import pairs_of_rows, rules_of
from support.exact_enumeration import enumerate_tokens, paired_rows
from support.rules_under_test import NEVER_STRICTER_THAN_LOSSLESS, SPELLINGS, Altered, every_rule, expected_numbers
from torch import Tensor

from cactus_decoding.core.audit import audit, judge_every_token
from cactus_decoding.core.rules import RULES, Rule, parse_rule
from cactus_decoding.core.rules.base import RowRule, row_rule
from cactus_decoding.core.types import AcceptanceRule

PAIRS = paired_rows()
LARGEST = 30.0
"""Of a knob: beyond it rules are what they are there, and formulas lose digits."""


def assert_close(given: Tensor, expected: Tensor, atol: float = 1e-12) -> None:
    """Compare to 1e-12, infinities included."""
    torch.testing.assert_close(given, expected, rtol=0, atol=atol)


def check_law(
    rule: AcceptanceRule, target: Tensor, draft: Tensor, audited: AcceptanceRule | None = None, slack: float = 1e-12
) -> None:
    """Check by enumeration what a rule emits: what its audit says, its h if it has one, and nothing excluded."""
    output, accepted = enumerate_tokens(rule, target, draft)
    result = audit(audited or rule, target, draft)
    assert_close(output.sum(-1), torch.ones(len(output), dtype=torch.float64))
    assert_close(result.output_probs, output, slack)
    assert_close(result.acceptance, accepted.sum(-1), slack)
    assert_close(result.tv, (output - target).abs().sum(-1) / 2, slack)
    inside, log_ratio = target > 0, output.log() - target.log()
    assert_close(result.kl, torch.where(output > 0, output * log_ratio, 0.0).sum(-1), slack)
    assert_close(result.max_log_ratio, torch.where(inside, log_ratio, -math.inf).amax(-1), slack)
    # compared as a ratio: a token that is hardly ever emitted is a difference of equal numbers, with no digits to log.
    # What rounding leaves of it is a part of 1, and not of the token's own probability
    rounding = 4 * torch.finfo(torch.float64).eps / float(target[inside].min())
    least = torch.where(inside, log_ratio, math.inf).amin(-1).exp()
    assert_close(result.min_log_ratio.exp(), least, slack + rounding)
    for emitted in (output, result.output_probs, judge_every_token(rule, target, draft).relaxed_prob):
        assert (emitted[~inside] == 0).all()
    if isinstance(rule, RowRule):
        assert_close(output, rule.relaxed_target(target, draft).double(), slack)


@every_rule()
def test_every_rule_emits_what_its_audit_says(spelling: str) -> None:
    for target, draft in PAIRS:
        assert (target == 0).any()
        check_law(parse_rule(spelling), target, draft)


@pytest.mark.parametrize("name", RULES)
@settings(max_examples=50)
@given(data=st.data(), rows=pairs_of_rows())
def test_any_knobs_do_too(name: str, data: st.DataObject, rows: tuple[Tensor, Tensor]) -> None:
    rule = data.draw(rules_of(name, LARGEST))
    cap = getattr(rule, "max_kl", None) or 0.0  # which is reached to a part of it, in one row or in several
    check_law(rule, *rows, slack=1e-12 + 1e-9 * cap)
    if rule.never_stricter:
        check_never_stricter(rule, *rows)


def check_never_stricter(rule: AcceptanceRule, target: Tensor, draft: Tensor) -> None:
    """Exactly, not up to rounding: it is what allows to consult the rule only where the lossless test fails."""
    relaxed_prob = judge_every_token(rule, target, draft).relaxed_prob
    assert ((relaxed_prob >= torch.minimum(target, draft)) | (target == 0)).all()


@every_rule(NEVER_STRICTER_THAN_LOSSLESS)
def test_a_rule_is_never_stricter_than_lossless(spelling: str) -> None:
    for rows in PAIRS:
        for dtype in (torch.float64, torch.float32):
            check_never_stricter(parse_rule(spelling), *(each.to(dtype) for each in rows))


def test_which_rules_have_a_relaxed_target() -> None:
    having = {rule.name for rule in map(parse_rule, SPELLINGS) if row_rule(rule) is not None}
    assert having == {name for name, rule in RULES.items() if issubclass(rule, RowRule)}
    for text in ("token_cascade:alpha=0.6", "fuzzy:threshold=0.1,closed=draw"):  # each emits its row by a draw
        assert row_rule(parse_rule(text)) is None


@every_rule()
def test_numbers_are_in_range_and_float64(spelling: str) -> None:
    for target, draft in PAIRS:
        every = torch.arange(target.shape[-1]).expand(target.shape)
        for rows in (draft.float(), None):
            relaxed_prob, scale, _ = parse_rule(spelling).judge(target.float(), rows, every)
            assert relaxed_prob.dtype == scale.dtype == torch.float64
            assert relaxed_prob.shape == scale.shape == every.shape
            assert ((relaxed_prob >= 0) & relaxed_prob.isfinite()).all()
            assert (scale >= 0).all()


@every_rule()
def test_deterministic_draft_is_a_one_hot_row(spelling: str) -> None:
    rule = parse_rule(spelling)
    for target, _ in PAIRS:
        vocabulary = target.shape[-1]
        ids = torch.arange(vocabulary).repeat(len(target)).unsqueeze(1)
        target = target.repeat_interleave(vocabulary, 0)
        one_hot = torch.zeros_like(target).scatter_(1, ids, 1.0)
        without, with_row = rule.judge(target, None, ids), rule.judge(target, one_hot, ids)
        assert_close(without.relaxed_prob.clamp(max=1), with_row.relaxed_prob.clamp(max=1))
        by_id, by_row = audit(rule, target, draft_token_ids=ids.squeeze(1)), audit(rule, target, one_hot)
        assert torch.equal(by_id.output_probs, by_row.output_probs)


def check_numbers(rule: AcceptanceRule, right: Rule) -> None:
    for target, draft in PAIRS:
        relaxed_prob, scale, _ = judge_every_token(rule, target, draft)
        for row, (q, p) in enumerate(zip(target, draft, strict=True)):
            expected = expected_numbers(right, q, p)
            assert_close(relaxed_prob[row], expected[0])
            assert_close(scale[row], expected[1])


# Other solvers, divergences and the clamped ratio, whose numbers are roots, have tests of their own.
ROOTS = ("exact", "divergence", "max_ratio", "clamped")
IN_CLOSED_FORM = [spelling for spelling in SPELLINGS if not any(word in spelling for word in ROOTS)]


@every_rule(IN_CLOSED_FORM)
def test_numbers_follow_the_papers_formulas(spelling: str) -> None:
    check_numbers(parse_rule(spelling), parse_rule(spelling))


@pytest.mark.parametrize("wrong", [{"residual_scale": 1.0}, {"residual_scale": math.inf}, {"acceptance_factor": 1.05}])
def test_checks_catch_wrong_recovery_and_wrong_acceptance(wrong: dict[str, float]) -> None:
    right = parse_rule("clamped:width=0.7")
    with pytest.raises(AssertionError):
        check_law(Altered(right, **wrong), *PAIRS[0], audited=right)


def test_checks_catch_a_budget_five_percent_off() -> None:
    wrong, right = parse_rule("cactus:delta=1.05"), parse_rule("cactus:delta=1")
    with pytest.raises(AssertionError):
        check_numbers(wrong, right)
    with pytest.raises(AssertionError):
        check_law(right, *PAIRS[0], audited=wrong)
