"""What a rule says of itself: commands, pages, studies and engines take its word for it."""

from __future__ import annotations

import math

import pytest
import torch
from support.rules_under_test import SPELLINGS, Altered, every_rule
from torch import Tensor

from cactus_decoding.core import rules
from cactus_decoding.core.rules import RULES, Lenience, parse_rule
from cactus_decoding.core.rules.base import GreedyRule, LiftRule, RowRule, row_rule
from cactus_decoding.core.schemes import VERIFICATIONS
from cactus_decoding.core.types import AcceptanceRule
from cactus_decoding.lab.frontier.relaxations import FAMILIES

GENERATOR = torch.Generator().manual_seed(0)
TARGET = torch.randn(4, 12, generator=GENERATOR, dtype=torch.float64).mul(2).softmax(-1)
DRAFT = torch.randn(4, 12, generator=GENERATOR, dtype=torch.float64).mul(2).softmax(-1)
EVERY = torch.arange(12).expand(4, 12)


@pytest.mark.parametrize("name", RULES)
def test_a_rule_says_everything_that_is_shown_of_it(name: str) -> None:
    rule = RULES[name]
    assert rule.name == name
    assert rule.__module__ == f"{rules.__name__}.{name}"
    assert rule.title
    assert rule.summary.endswith(".")
    assert rule.presets
    for preset in rule.presets:
        assert type(parse_rule(preset.spelling)) is rule
        assert preset.guarantee.endswith(".")
        assert preset.choose


def test_a_way_to_verify_is_not_taken_for_a_rule() -> None:
    for name in VERIFICATIONS:
        with pytest.raises(ValueError, match=f"'{name}' is no rule, but a way to verify: --verification {name}"):
            parse_rule(name)


def test_families_are_rules_of_their_class_over_their_whole_range() -> None:
    families = [(rule, family) for rule in RULES.values() for family in rule.families]
    assert len({family.name for _, family in families}) == len(families)
    for rule, family in families:
        assert family.strict < family.loose
        for knob in family.knobs(5):
            assert type(parse_rule(family.spell(knob))) is rule
        assert (family.name in FAMILIES) == (not issubclass(rule, GreedyRule))


@every_rule([text for text in SPELLINGS if isinstance(parse_rule(text), LiftRule)])
def test_a_rule_that_lifts_one_token_keeps_the_proportions_of_the_others(spelling: str) -> None:
    relaxed, scale, _ = parse_rule(spelling).judge(TARGET, DRAFT, EVERY)
    without_draft = parse_rule(spelling).judge(TARGET, None, EVERY)
    torch.testing.assert_close(relaxed + scale * (1 - TARGET), torch.ones_like(TARGET), rtol=0, atol=1e-12)
    assert torch.equal(relaxed, without_draft.relaxed_prob)  # a row of two, with or without a draft, says it all
    absurd = torch.tensor([[1e-9, 1 - 1e-9]], dtype=torch.float64)
    lifted = parse_rule(spelling).judge(absurd, None, torch.zeros(1, 1, dtype=torch.long)).relaxed_prob.item()
    assert parse_rule(spelling).lifts_absurd_tokens == (lifted > 1e-6)


ROWS = [text for text in SPELLINGS if row_rule(parse_rule(text)) is not None]


def check_numbers_do_what_the_row_says(rule: AcceptanceRule, row: RowRule) -> None:
    """Check that numbers accept and recover every token as h(n), 1 and h do."""
    for draft in (DRAFT, None):
        own, plain = rule.judge(TARGET, draft, EVERY), RowRule.judge(row, TARGET, draft, EVERY)
        p = torch.ones_like(DRAFT) if draft is None else draft
        kept = torch.minimum(own.relaxed_prob, p)
        torch.testing.assert_close(kept, torch.minimum(plain.relaxed_prob, p), rtol=0, atol=1e-12)
    own, h = rule.judge(TARGET, DRAFT, EVERY), row.relaxed_target(TARGET, DRAFT)
    start = own.recovers_from(TARGET)
    for i, drafted in (own.relaxed_prob < DRAFT).nonzero().tolist():
        weights = (own.residual_scale[i, drafted] * start[i] - DRAFT[i]).clamp(min=0)
        residual = (h[i] - DRAFT[i]).clamp(min=0)
        if residual.sum() > 1e-9:
            torch.testing.assert_close(weights / weights.sum(), residual / residual.sum(), rtol=0, atol=1e-9)


@every_rule(ROWS)
def test_numbers_of_a_rule_with_a_row_accept_and_recover_as_the_row_does(spelling: str) -> None:
    rule = parse_rule(spelling)
    assert isinstance(rule, RowRule)
    check_numbers_do_what_the_row_says(rule, rule)


@pytest.mark.parametrize("wrong", [{"acceptance_factor": 0.99}, {"residual_scale": 1.0}, {"residual_scale": math.inf}])
def test_numbers_that_do_something_else_are_noticed(wrong: dict[str, float]) -> None:
    rule = Lenience(0.6)
    with pytest.raises(AssertionError):
        check_numbers_do_what_the_row_says(Altered(rule, **wrong), rule)


def test_a_rule_is_of_one_kind_and_promises_what_follows_from_it() -> None:
    for rule in map(parse_rule, SPELLINGS):
        assert sum(isinstance(rule, kind) for kind in (RowRule, LiftRule, GreedyRule)) <= 1
        if isinstance(rule, LiftRule):
            assert rule.never_stricter
            assert rule.support_only
            assert rule.drafted_only


class Short(RowRule):
    """It emits q, but for what rounding takes away: here a digit or two of each row's type."""

    name = "short"
    never_stricter = True

    def relaxed_target(self, target_probs: Tensor, draft_probs: Tensor) -> Tensor:
        return target_probs * (1 - 2 * torch.finfo(target_probs.dtype).eps)


class ShortWithoutPromise(Short):
    never_stricter = False


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_rounding_breaks_no_promise_to_be_never_stricter(dtype: torch.dtype) -> None:
    target, draft = TARGET.to(dtype), DRAFT.to(dtype)
    lossless = torch.minimum(target, draft).double()
    h = Short().relaxed_target(target, draft).double()
    assert (h < target).all()
    assert torch.equal(Short().judge(target, draft, EVERY).relaxed_prob, torch.maximum(h, lossless))
    assert torch.equal(Short().judge(target, None, EVERY).relaxed_prob, target.double())
    assert (ShortWithoutPromise().judge(target, draft, EVERY).relaxed_prob < lossless).any()
    assert torch.equal(ShortWithoutPromise().judge(target, draft, EVERY).relaxed_prob, h)


class Halving(LiftRule):
    """Wrong: it lowers, and it lifts what the target excludes."""

    name = "halving"

    def lift(self, target_prob: Tensor) -> Tensor:
        return target_prob / 2 + torch.where(target_prob == 0, 0.1, 0.0)


def test_a_lift_lowers_nothing_and_lifts_nothing_that_the_target_excludes() -> None:
    rows = torch.tensor([0.0, 0.25, 0.75], dtype=torch.float64)
    numbers = Halving().judge(rows, None, torch.arange(3))
    assert numbers.relaxed_prob.tolist() == rows.tolist()
    assert numbers.residual_scale.tolist() == [1.0, 1.0, 1.0]
