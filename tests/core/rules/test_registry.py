"""What a rule says of itself: commands, pages, studies and engines take its word for it."""

from __future__ import annotations

import pytest
import torch
from support.rules_under_test import SPELLINGS, every_rule

from cactus_decoding.core import rules
from cactus_decoding.core.rules import RULES, parse_rule
from cactus_decoding.core.schemes import VERIFICATIONS
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
        assert (family.name in FAMILIES) == (not rule.judges_untempered)


@every_rule([text for text in SPELLINGS if parse_rule(text).lifts_one_token])
def test_a_rule_that_lifts_one_token_keeps_the_proportions_of_the_others(spelling: str) -> None:
    relaxed, scale = parse_rule(spelling).judge(TARGET, DRAFT, EVERY)
    without_draft = parse_rule(spelling).judge(TARGET, None, EVERY)
    torch.testing.assert_close(relaxed + scale * (1 - TARGET), torch.ones_like(TARGET), rtol=0, atol=1e-12)
    assert torch.equal(relaxed, without_draft.relaxed_prob)  # a row of two, with or without a draft, says it all
    absurd = torch.tensor([[1e-9, 1 - 1e-9]], dtype=torch.float64)
    lifted = parse_rule(spelling).judge(absurd, None, torch.zeros(1, 1, dtype=torch.long)).relaxed_prob.item()
    assert parse_rule(spelling).lifts_absurd_tokens == (lifted > 1e-6)


@every_rule([text for text in SPELLINGS if parse_rule(text).recovers_from_relaxed_target])
def test_a_rule_that_recovers_from_its_relaxed_target_weighs_every_token_so(spelling: str) -> None:
    rule = parse_rule(spelling)
    relaxed, scale = rule.judge(TARGET, DRAFT, EVERY)
    rows = rule.relaxed_target(TARGET, DRAFT)
    assert rows is not None or rule.lifts_one_token
    for row, drafted in (relaxed < DRAFT).nonzero().tolist():
        q, p, s = TARGET[row], DRAFT[row], scale[row, drafted]
        h = rows[row] if rows is not None else torch.where(EVERY[row] == drafted, relaxed[row, drafted], s * q)
        weights, residual = (s * rule.recovery_target(q) - p).clamp(min=0), (h - p).clamp(min=0)
        if residual.sum() > 1e-9:
            torch.testing.assert_close(weights / weights.sum(), residual / residual.sum(), rtol=0, atol=1e-9)
