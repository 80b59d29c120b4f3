"""Any knobs of every rule: its law is the audited one, by enumeration in float64, and it keeps what it promises."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.any_rule import pairs_of_rows, rules_of
from support.exact_enumeration import enumerate_tokens
from support.rules_under_test import Altered
from torch import Tensor

from cactus_decoding.core.audit import audit, judge_every_token
from cactus_decoding.core.rules import RULES, parse_rule
from cactus_decoding.core.types import AcceptanceRule

TOLERANCE = {"rtol": 0, "atol": 1e-12}
LARGEST = 30.0
"""Of a knob: beyond it rules are what they are there, and formulas lose digits."""


def assert_has_the_audited_law(rule: AcceptanceRule, audited: AcceptanceRule, target: Tensor, draft: Tensor) -> None:
    output, accepted = enumerate_tokens(rule, target, draft)
    result = audit(audited, target, draft)
    torch.testing.assert_close(output.sum(-1), torch.ones(1, dtype=torch.float64), **TOLERANCE)
    torch.testing.assert_close(result.output_probs, output, **TOLERANCE)
    torch.testing.assert_close(result.acceptance, accepted.sum(-1), **TOLERANCE)
    assert output[target == 0].eq(0).all()


@pytest.mark.parametrize("name", RULES)
@settings(max_examples=50)
@given(data=st.data(), rows=pairs_of_rows())
def test_the_law_of_any_knobs_is_the_audited_one(name: str, data: st.DataObject, rows: tuple[Tensor, Tensor]) -> None:
    rule, (target, draft) = data.draw(rules_of(name, LARGEST)), rows
    assert_has_the_audited_law(rule, rule, target, draft)
    relaxed_target = rule.relaxed_target(target, draft)
    if relaxed_target is not None:
        torch.testing.assert_close(enumerate_tokens(rule, target, draft)[0], relaxed_target.double(), **TOLERANCE)
    if rule.never_stricter_than_lossless:
        relaxed_prob = judge_every_token(rule, target, draft).relaxed_prob
        assert ((relaxed_prob >= torch.minimum(target, draft)) | (target == 0)).all()


@pytest.mark.parametrize("wrong", [{"acceptance_factor": 0.95}, {"residual_scale": 1.0}])
def test_a_rule_of_another_law_is_noticed(wrong: dict[str, float]) -> None:
    right = parse_rule("lenience:lenience=0.5")
    target, draft = torch.tensor([[[0.5, 0.3, 0.2]], [[0.1, 0.1, 0.8]]], dtype=torch.float64)
    assert_has_the_audited_law(right, right, target, draft)
    with pytest.raises(AssertionError):
        assert_has_the_audited_law(Altered(right, **wrong), right, target, draft)
