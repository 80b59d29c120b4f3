"""Chi-square tests of `verify` itself.

Each test that can fail by chance does so with probability 1e-6 over the choice of its seed; there are fewer than 80 of
them, so the false-alarm probability of the whole file is below 1e-4. Generators are fixed: a pass stays a pass.
"""

from __future__ import annotations

import math

import pytest
import torch
from support.chi_square import rejects
from support.exact_enumeration import make_rows
from support.rules_under_test import SPELLINGS, Altered
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


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_first_token_has_the_audited_law(spelling: str) -> None:
    expected = audit(spelling, TARGET, DRAFT).output_probs
    expected = torch.where(TARGET > 0, expected, 0.0)  # one token that the target excludes is one too many
    assert not rejects(first_tokens(spelling, seed=SPELLINGS.index(spelling)), expected)


@pytest.mark.parametrize("spelling", ["lossless", "cactus:delta=1", "clamped:width=1", "lenience:lenience=0.6"])
def test_first_token_of_float32_rows_has_the_audited_law(spelling: str) -> None:
    # nearly one-hot rows, whose float32 rounding is large next to what is left for the other tokens
    target = torch.tensor([12.0, 2.0, 1.0, 0.0, -1.0, 0.0, 0.0, 0.0]).softmax(-1)
    draft = torch.tensor([3.0, 2.0, 1.0, 0.0, -1.0, 0.0, 0.0, 0.0]).softmax(-1)
    expected = audit(spelling, target, draft).output_probs
    assert not rejects(first_tokens(spelling, 7, target, draft), expected / expected.sum())


@pytest.mark.parametrize("spelling", ["lossless", "typical:threshold=0.4,alpha=2,recovery=sample"])
def test_rows_without_zeros_have_the_audited_law(spelling: str) -> None:
    # an infinite s must leave the target's law, and not infinite weights
    expected = audit(spelling, STEEP_TARGET, STEEP_DRAFT).output_probs
    assert not rejects(first_tokens(spelling, 13, STEEP_TARGET, STEEP_DRAFT), expected)


@pytest.mark.parametrize("spelling", ["lossless", "cactus:delta=0.2", "clamped:width=1", "top_k:k=2,residual=mask"])
def test_deterministic_draft_has_the_audited_law(spelling: str) -> None:
    proposed = torch.nn.functional.one_hot(torch.tensor(3), len(TARGET)).double()
    expected = audit(spelling, TARGET, draft_token_ids=torch.tensor(3)).output_probs
    assert not rejects(first_tokens(spelling, 11, draft=proposed, deterministic=True), expected)


@pytest.mark.parametrize("spelling", ["lossless", "cactus:delta=1", "typical", "top_k:k=1000"])
def test_bonus_token_has_the_target_s_law(spelling: str) -> None:
    # the draft is the target, so everything is kept, and the bonus token comes from the last row
    generator = torch.Generator().manual_seed(3)
    target = torch.tensor([0.4, 0.4, 0.2])
    drafted = pick(target.expand(DRAWS, 3), generator).unsqueeze(1)
    last = torch.tensor([0.1, 0.0, 0.9])
    result = verify(
        spelling, torch.stack([target, last]).expand(DRAWS, 2, 3), target.expand(DRAWS, 1, 3), drafted, generator
    )
    assert (result.num_accepted == 1).all()
    assert not rejects(result.next_token, last)


def markov_pair() -> tuple[Tensor, Tensor]:
    """Rows of a toy target and draft that depend on the previous token."""
    target, draft = (rows.sqrt() for rows in make_rows(4, 4, seed=5))
    return target / target.sum(-1, keepdim=True), draft / draft.sum(-1, keepdim=True)


def two_tokens(rule: AcceptanceRule | str, seed: int, second_row: str = "after the first proposal") -> Tensor:
    """Emit two tokens after token 0 in steps of two proposals; return them as one number, ``[2 * DRAWS]``.

    ``second_row`` makes a wrong sampler: it verifies the second proposal by the row before the first.
    """
    generator = torch.Generator().manual_seed(seed)
    target, draft = markov_pair()

    def step(context: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        one = pick(draft[context], generator)
        two = pick(draft[one], generator)
        middle = target[one] if second_row == "after the first proposal" else target[context]
        rows = torch.stack([target[context], middle, target[two]], dim=1)
        drafted = torch.stack([one, two], dim=1)
        result = verify(rule, rows, torch.stack([draft[context], draft[one]], dim=1), drafted, generator)
        first = torch.where(result.num_accepted == 0, result.next_token, one)
        return first, torch.where(result.num_accepted == 1, result.next_token, two), result.num_accepted

    first, second, num_accepted = step(torch.zeros(2 * DRAWS, dtype=torch.int64))
    next_first, _, _ = step(first)
    return first * 4 + torch.where(num_accepted == 0, next_first, second)


def product(rows: Tensor) -> Tensor:
    """Return the law of the first two tokens of a Markov chain, flattened as `two_tokens` numbers them."""
    return (rows[0].unsqueeze(1) * rows).flatten()


def test_two_lossless_tokens_have_the_target_s_joint_law() -> None:
    assert not rejects(two_tokens("lossless", seed=1), product(markov_pair()[0]))


def test_two_clamped_tokens_have_the_relaxed_joint_law() -> None:
    rule = parse_rule("clamped:width=0.7")
    assert not rejects(two_tokens(rule, seed=2), product(rule.relaxed_target(*markov_pair())))


def test_joint_law_check_catches_the_row_of_another_position() -> None:
    assert rejects(two_tokens("lossless", seed=1, second_row="wrong"), product(markov_pair()[0]))


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
