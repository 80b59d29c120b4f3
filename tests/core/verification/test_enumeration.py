"""Exact tests: every drafted token is enumerated on small vocabularies, in float64, to 1e-12."""

from __future__ import annotations

import math
from functools import cache

import pytest
import torch
from support.exact_enumeration import enumerate_tokens, paired_rows
from support.rules_under_test import NEVER_STRICTER_THAN_LOSSLESS, SPELLINGS, Altered, expected_numbers
from torch import Tensor

from cactus_decoding.core.audit import audit, judge_every_token
from cactus_decoding.core.rules import Rule, parse_rule
from cactus_decoding.core.types import AcceptanceRule

TOLERANCE = 1e-12
PAIRS = paired_rows()


@cache
def enumerated(rule: AcceptanceRule, which: int) -> tuple[Tensor, Tensor]:
    return enumerate_tokens(rule, *PAIRS[which])


every_rule = pytest.mark.parametrize("spelling", SPELLINGS)
every_pair = pytest.mark.parametrize("which", range(len(PAIRS)))


def assert_close(given: Tensor, expected: Tensor) -> None:
    """Compare to 1e-12, infinities included."""
    torch.testing.assert_close(given, expected, rtol=0, atol=TOLERANCE)


def check_relaxed_target(rule: AcceptanceRule) -> None:
    """A rule whose h does not depend on the drafted token emits exactly h."""
    for which, (target, draft) in enumerate(PAIRS):
        relaxed_target = rule.relaxed_target(target, draft)
        if relaxed_target is not None:
            assert_close(enumerated(rule, which)[0], relaxed_target.double())


@every_rule
@every_pair
def test_emitted_distribution_is_one_and_is_the_audited(spelling: str, which: int) -> None:
    rule = parse_rule(spelling)
    output, _ = enumerated(rule, which)
    assert_close(output.sum(-1), torch.ones(len(output), dtype=torch.float64))
    assert_close(audit(rule, *PAIRS[which]).output_probs, output)


@every_rule
@every_pair
def test_audited_numbers_follow_their_definitions(spelling: str, which: int) -> None:
    rule, (target, draft) = parse_rule(spelling), PAIRS[which]
    output, accepted = enumerated(rule, which)
    result = audit(rule, target, draft)
    assert_close(result.acceptance, accepted.sum(-1))
    assert_close(result.tv, (output - target).abs().sum(-1) / 2)
    inside = target > 0
    log_ratio = output.log() - target.log()
    assert_close(result.kl, torch.where(output > 0, output * log_ratio, 0.0).sum(-1))
    assert_close(result.max_log_ratio, torch.where(inside, log_ratio, -math.inf).amax(-1))
    # compared as a ratio: a token that is hardly ever emitted is a difference of equal numbers, with no digits to log
    assert_close(result.min_log_ratio.exp(), torch.where(inside, log_ratio, math.inf).amin(-1).exp())


@every_rule
@every_pair
def test_tokens_that_the_target_excludes_are_never_emitted(spelling: str, which: int) -> None:
    rule, (target, draft) = parse_rule(spelling), PAIRS[which]
    excluded = target == 0
    assert excluded.any()
    assert (enumerated(rule, which)[0][excluded] == 0).all()
    assert (audit(rule, target, draft).output_probs[excluded] == 0).all()
    assert (judge_every_token(rule, target, draft).relaxed_prob[excluded] == 0).all()


@every_rule
def test_rule_emits_its_relaxed_target(spelling: str) -> None:
    check_relaxed_target(parse_rule(spelling))


def test_which_rules_have_a_relaxed_target() -> None:
    rows = torch.full((1, 2), 0.5)
    having = {rule.name for rule in map(parse_rule, SPELLINGS) if rule.relaxed_target(rows, rows) is not None}
    assert having == {
        "lossless", "ensemble", "lenience", "clamped", "cascade", "fuzzy", "kl_gate", "token_cascade", "ears",
    }  # fmt: skip
    for text in ("token_cascade:alpha=0.6", "fuzzy:threshold=0.1,closed=draw"):  # each emits its row by a draw
        assert parse_rule(text).relaxed_target(rows, rows) is None


@every_pair
def test_lossless_emits_exactly_the_target(which: int) -> None:
    assert_close(enumerated(parse_rule("lossless"), which)[0], PAIRS[which][0])


@pytest.mark.parametrize("spelling", NEVER_STRICTER_THAN_LOSSLESS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_rule_is_never_stricter_than_lossless(spelling: str, dtype: torch.dtype) -> None:
    # exactly, not up to rounding: it is what allows to consult the rule only where the lossless test fails
    for target, draft in PAIRS:
        target, draft = target.to(dtype), draft.to(dtype)
        relaxed_prob = judge_every_token(parse_rule(spelling), target, draft).relaxed_prob
        assert ((relaxed_prob >= torch.minimum(target, draft)) | (target == 0)).all()


@every_rule
def test_numbers_are_in_range_and_float64(spelling: str) -> None:
    for target, draft in PAIRS:
        every = torch.arange(target.shape[-1]).expand(target.shape)
        for rows in (draft.float(), None):
            relaxed_prob, scale = parse_rule(spelling).judge(target.float(), rows, every)
            assert relaxed_prob.dtype == scale.dtype == torch.float64
            assert relaxed_prob.shape == scale.shape == every.shape
            assert ((relaxed_prob >= 0) & relaxed_prob.isfinite()).all()
            assert (scale >= 0).all()


@every_rule
@every_pair
def test_deterministic_draft_is_a_one_hot_row(spelling: str, which: int) -> None:
    rule, target = parse_rule(spelling), PAIRS[which][0]
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
        relaxed_prob, scale = judge_every_token(rule, target, draft)
        for row, (q, p) in enumerate(zip(target, draft, strict=True)):
            expected = expected_numbers(right, q, p)
            assert_close(relaxed_prob[row], expected[0])
            assert_close(scale[row], expected[1])


# Other solvers, divergences and the clamped ratio, whose numbers are roots, have tests of their own.
ROOTS = ("exact", "divergence", "max_ratio", "clamped")
IN_CLOSED_FORM = [spelling for spelling in SPELLINGS if not any(word in spelling for word in ROOTS)]


@pytest.mark.parametrize("spelling", IN_CLOSED_FORM)
def test_numbers_follow_the_papers_formulas(spelling: str) -> None:
    check_numbers(parse_rule(spelling), parse_rule(spelling))


@pytest.mark.parametrize("wrong", [{"residual_scale": 1.0}, {"residual_scale": math.inf}, {"acceptance_factor": 1.05}])
def test_checks_catch_wrong_recovery_and_wrong_acceptance(wrong: dict[str, float]) -> None:
    with pytest.raises(AssertionError):
        check_relaxed_target(Altered(parse_rule("clamped:width=0.7"), **wrong))


def test_checks_catch_a_budget_five_percent_off() -> None:
    wrong, right = parse_rule("cactus:delta=1.05"), parse_rule("cactus:delta=1")
    with pytest.raises(AssertionError):
        check_numbers(wrong, right)
    with pytest.raises(AssertionError):
        assert_close(audit(wrong, *PAIRS[0]).output_probs, enumerated(right, 0)[0])
