"""The joint law of consecutive tokens of speculative steps, enumerated in float64 to 1e-12 on a toy Markov pair."""

from __future__ import annotations

import math

import pytest
import torch
from support.exact_enumeration import joint_law, markov_pair, product_law
from support.rules_under_test import Altered
from torch import Tensor

from cactus_decoding.core.rules import parse_rule
from cactus_decoding.core.types import AcceptanceRule


def check_joint_law(rule: AcceptanceRule, rows: Tensor, length: int) -> None:
    target, draft = markov_pair()
    law = joint_law(rule, target, draft, start=0, proposals=2, length=length)
    for tokens, probability in product_law(rows, 0, length).items():
        assert law.get(tokens, 0.0) == pytest.approx(probability, rel=0, abs=1e-12)


@pytest.mark.parametrize("length", [2, 3, 4])
def test_lossless_joint_law_is_the_target_s(length: int) -> None:
    check_joint_law(parse_rule("lossless"), markov_pair()[0], length)


@pytest.mark.parametrize("spelling", ["clamped:width=0.7", "clamped:max_kl=0.05"])
def test_clamped_joint_law_is_the_relaxed_target_s_and_the_bonus_token_the_target_s(spelling: str) -> None:
    # with two proposals the first two tokens are always verified; the third is a bonus token if both were accepted
    rule, (target, draft) = parse_rule(spelling), markov_pair()
    relaxed = rule.relaxed_target(target, draft)
    check_joint_law(rule, relaxed, length=2)
    both = torch.minimum(relaxed, draft)
    for (a, b, c), probability in joint_law(rule, target, draft, 0, proposals=2, length=3).items():
        all_kept = both[0, a] * both[a, b]
        expected = all_kept * target[b, c] + (relaxed[0, a] * relaxed[a, b] - all_kept) * relaxed[b, c]
        assert probability == pytest.approx(expected.item(), rel=0, abs=1e-12)


WRONG = [{"residual_scale": 1.0}, {"residual_scale": math.inf}, {"acceptance_factor": 1.05}]


@pytest.mark.parametrize("wrong", WRONG)
def test_check_catches_wrong_recovery_and_wrong_acceptance(wrong: dict[str, float]) -> None:
    clamped = parse_rule("clamped:width=0.7")
    with pytest.raises(AssertionError):
        check_joint_law(Altered(clamped, **wrong), clamped.relaxed_target(*markov_pair()), length=2)


@pytest.mark.parametrize("wrong", WRONG[1:])
def test_check_catches_a_lossless_rule_that_is_not(wrong: dict[str, float]) -> None:
    with pytest.raises(AssertionError):
        check_joint_law(Altered(parse_rule("lossless"), **wrong), markov_pair()[0], length=2)
