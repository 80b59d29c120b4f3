"""Chi-square tests of `verify` itself: that its random numbers are drawn and used as the enumeration supposes.

What is emitted for given numbers is compared elsewhere: with the walk (test_places.py), whose law is enumerated
(test_exactness.py). Each test here fails by chance with probability 1e-6 over the choice of its seed, and there are
fewer than 40 of them. Generators are fixed: a pass stays a pass.
"""

from __future__ import annotations

import math

import pytest
import torch
from support.chi_square import rejects
from support.rules_under_test import ORDINARY, Altered
from torch import Tensor

from cactus_decoding.core.audit import audit
from cactus_decoding.core.rules import parse_rule
from cactus_decoding.core.types import AcceptanceRule
from cactus_decoding.core.verification.batched import verify

DRAWS = 20_000
# Tokens that the target excludes, tokens that the draft never proposes, and some that both rate about equally.
TARGET = torch.tensor([0.0, 0.35, 0.25, 0.05, 0.12, 0.13, 0.1, 0.0], dtype=torch.float64)
DRAFT = torch.tensor([0.15, 0.1, 0.45, 0.12, 0.0, 0.13, 0.05, 0.0], dtype=torch.float64)
# The second token gains little by recovery from the relaxed target's residual, and much by the usual mistakes.
STEEP_TARGET = torch.tensor([0.1, 0.45, 0.45], dtype=torch.float64)
STEEP_DRAFT = torch.tensor([0.7, 0.28, 0.02], dtype=torch.float64)


def pick(rows: Tensor, generator: torch.Generator) -> Tensor:
    """Draw one token from each row, ``[batch]``."""
    return torch.multinomial(rows, 1, generator=generator).squeeze(1)


def first_tokens(
    rule: AcceptanceRule | str,
    seed: int,
    target: Tensor = TARGET,
    draft: Tensor = DRAFT,
    *,
    deterministic: bool = False,
) -> Tensor:
    """Draft one token for each of many sequences, verify it, and return the first token emitted, ``[DRAWS]``."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.stack([target, target]).expand(DRAWS, 2, -1)
    drafts = draft.expand(DRAWS, 1, -1)
    drafted = pick(drafts[:, 0], generator).unsqueeze(1)
    result = verify(rule, rows, None if deterministic else drafts, drafted, generator)
    return torch.where(result.num_accepted == 1, drafted.squeeze(1), result.next_token)


@pytest.mark.parametrize("spelling", sorted(ORDINARY))
def test_first_token_has_the_audited_law(spelling: str) -> None:
    expected = audit(spelling, TARGET, DRAFT).output_probs
    expected = torch.where(TARGET > 0, expected, 0.0)  # one token that the target excludes is one too many
    assert not rejects(first_tokens(spelling, seed=sorted(ORDINARY).index(spelling)), expected)


def test_first_token_of_float32_rows_has_the_audited_law() -> None:
    # nearly one-hot rows, whose float32 rounding is large next to what is left for the other tokens
    target = torch.tensor([12.0, 2.0, 1.0, 0.0, -1.0, 0.0, 0.0, 0.0]).softmax(-1)
    draft = torch.tensor([3.0, 2.0, 1.0, 0.0, -1.0, 0.0, 0.0, 0.0]).softmax(-1)
    expected = audit("cactus:delta=1", target, draft).output_probs
    assert not rejects(first_tokens("cactus:delta=1", 7, target, draft), expected / expected.sum())


def test_deterministic_draft_has_the_audited_law() -> None:
    proposed = torch.nn.functional.one_hot(torch.tensor(3), len(TARGET)).double()
    expected = audit("clamped:width=1", TARGET, draft_token_ids=torch.tensor(3)).output_probs
    assert not rejects(first_tokens("clamped:width=1", 11, draft=proposed, deterministic=True), expected)


def test_bonus_token_has_the_target_s_law() -> None:
    # the draft is the target, so everything is kept, and the bonus token comes from the last row
    generator = torch.Generator().manual_seed(3)
    target, last = torch.tensor([0.4, 0.4, 0.2]), torch.tensor([0.1, 0.0, 0.9])
    drafted = pick(target.expand(DRAWS, 3), generator).unsqueeze(1)
    rows = torch.stack([target, last]).expand(DRAWS, 2, 3)
    result = verify("cactus:delta=1", rows, target.expand(DRAWS, 1, 3), drafted, generator)
    assert (result.num_accepted == 1).all()
    assert not rejects(result.next_token, last)


WRONG_RULES = [
    pytest.param(Altered(parse_rule(spelling), **wrong), id=f"{spelling} {wrong}")
    for spelling in ("lossless", "cactus:delta=0.5", "clamped:width=1")
    for wrong in ({"residual_scale": math.inf}, {"residual_scale": 1.0}, {"acceptance_factor": 1.15})
    if (spelling, wrong) != ("lossless", {"residual_scale": 1.0})  # which is right
]


@pytest.mark.parametrize("wrong", WRONG_RULES)
def test_law_check_catches_wrong_rules(wrong: Altered) -> None:
    expected = audit(wrong.right, STEEP_TARGET, STEEP_DRAFT).output_probs
    assert not rejects(first_tokens(wrong.right, 5, STEEP_TARGET, STEEP_DRAFT), expected)
    assert rejects(first_tokens(wrong, 5, STEEP_TARGET, STEEP_DRAFT), expected)


def test_law_check_catches_a_sampled_draft_taken_for_a_fixed_one() -> None:
    # (for the lossless rule it would be right, only slower: given any drafted token, it emits the target's law)
    expected = audit("clamped:width=1", TARGET, DRAFT).output_probs
    assert rejects(first_tokens("clamped:width=1", seed=5, deterministic=True), expected)


def test_law_check_catches_a_drafter_that_drops_unlikely_draws() -> None:
    # redrawing tokens of probability below 0.12 changes the law of the draft: its rows are not what was drawn from
    kept = torch.where(DRAFT < 0.12, 0.0, DRAFT)
    generator = torch.Generator().manual_seed(9)
    drafted = pick(kept.expand(DRAWS, -1), generator).unsqueeze(1)
    rows = torch.stack([TARGET, TARGET]).expand(DRAWS, 2, -1)
    result = verify("lossless", rows, DRAFT.expand(DRAWS, 1, -1), drafted, generator)
    assert rejects(torch.where(result.num_accepted == 1, drafted.squeeze(1), result.next_token), TARGET)
