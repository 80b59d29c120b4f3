"""A position is audited alike by itself and among others, with and without tokens that are proposed in any case."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.any_rule import Beside, rows_beside, rules_of
from support.exact_enumeration import enumerate_tokens
from support.rules_under_test import Emitting
from support.wrong_bounds import FloorTooHigh

from cactus_decoding.core.audit import Audit, acceptance, audit
from cactus_decoding.core.divergences import ratio_clamp
from cactus_decoding.core.divergences.rows import normalised, without
from cactus_decoding.core.rules import RULES, ClampedRatio, Rule, parse_rule
from cactus_decoding.core.rules.base import row_rule

LARGEST = 30.0
"""Of a knob: beyond it rules are what they are there, and formulas lose digits."""
REPORTED = Beside(
    torch.tensor([0, 0.00019, 0, 0.99981, 0, 0], dtype=torch.float64),
    torch.tensor([0, 0.28, 0, 0.43, 0.29, 0], dtype=torch.float64),
    torch.tensor([3]),
)
"""Beside its fixed token the draft has more than half of its mass on a token that truncation excludes."""


def audited(rule: Rule, rows: Beside, copies: int | None = None) -> Audit:
    """Audit a position by itself, or several times at once."""
    given = rows if copies is None else Beside(*(each.expand(copies, -1) for each in rows))
    return audit(rule, *given[:2], fixed_token_ids=given.fixed if rows.fixed.numel() else None)


def check(rule: Rule, rows: Beside) -> None:
    """Check a rule at a position against its enumeration, and what it relaxes to against what rows must be."""
    cap = getattr(rule, "max_kl", None) or 0.0
    nats = 1e-12 + 2e-11 * cap  # of a cap as much may be left, in either way
    slack = 1e-6 if 0 < cap < 1e-6 else nats  # and probabilities move by the root of what is
    target, draft = normalised(rows.target), normalised(rows.draft)
    drawn = without(draft, rows.fixed)
    if rows.fixed.numel() and drawn.sum() == 0:
        drawn[rows.fixed[0]] = 1.0
    alone, beside = audited(rule, rows), audited(rule, rows, 3)
    for name in ("output_probs", "acceptance", "kl", "tv"):
        for other in getattr(beside, name):
            torch.testing.assert_close(other, getattr(alone, name), rtol=0, atol=nats if name == "kl" else slack)
    giving = row_rule(rule)
    h = None if giving is None else giving.relaxed_target_beside(target, draft, drawn, rows.fixed)
    judge = rule if h is None else Emitting(h)
    output, accepted = (each[0] for each in enumerate_tokens(judge, target[None], drawn[None]))
    kl = torch.where(output > 0, output * (output.log() - target.log()), 0.0).sum()
    torch.testing.assert_close(alone.output_probs, output, rtol=0, atol=slack)
    torch.testing.assert_close(alone.kl, kl, rtol=0, atol=nats)
    assert (alone.output_probs[target == 0] == 0).all()
    if not rows.fixed.numel():
        torch.testing.assert_close(alone.acceptance, accepted.sum(), rtol=0, atol=slack)
        torch.testing.assert_close(acceptance(rule, target, draft), accepted.sum(), rtol=0, atol=slack)
    if h is not None:
        assert abs(h.sum() - 1) <= 1e-12
        assert (h >= 0).all()
        assert (h[target == 0] == 0).all()
    if isinstance(rule, ClampedRatio):
        check_bounds(rule, h, target, alone)


def check_bounds(rule: ClampedRatio, h: torch.Tensor, target: torch.Tensor, alone: Audit) -> None:
    width = ratio_clamp.MAX_WIDTH if rule.width is None else rule.width
    held = target > 1e-300 * math.exp(width)  # less is nothing, once it is divided by the bound
    assert ((h[held].log() - target[held].log()).abs() <= width * (1 + 1e-12) + 1e-12).all()
    if rule.max_kl is not None:
        assert alone.kl <= rule.max_kl * (1 + 1e-9) + 1e-14


@pytest.mark.parametrize("name", RULES)
@settings(max_examples=60)
@given(data=st.data(), rows=rows_beside())
def test_any_rule_is_audited_alike_alone_and_among_others(name: str, data: st.DataObject, rows: Beside) -> None:
    check(data.draw(rules_of(name, LARGEST)), rows)


@pytest.mark.slow
@pytest.mark.parametrize("name", RULES)
@settings(max_examples=500)
@given(data=st.data(), rows=rows_beside())
def test_any_rule_is_audited_alike_on_many_rows(name: str, data: st.DataObject, rows: Beside) -> None:
    check(data.draw(rules_of(name, LARGEST)), rows)


CLAMPED = [parse_rule(f"clamped:{knob}") for knob in ("width=3", "width=12", "width=500", "max_kl=1e-4", "max_kl=1")]


@pytest.mark.parametrize("rule", CLAMPED, ids=str)
def test_what_the_target_excludes_of_a_draft_beside_fixed_tokens_lifts_no_other(rule: Rule) -> None:
    check(rule, REPORTED)
    assert audited(rule, REPORTED).kl < 1e-12


@pytest.mark.parametrize("rule", [each for each in CLAMPED if each.width], ids=str)
def test_bounds_that_only_rows_among_others_have_right_would_be_noticed(
    rule: Rule, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ratio_clamp, "ClampedRow", FloorTooHigh)
    with pytest.raises(AssertionError):
        check(rule, REPORTED)
