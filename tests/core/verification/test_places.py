"""Every place that tests a drafted token decides alike: the same rows and random numbers, the same decision.

The generators are the same on both sides, so nothing is statistical here.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.rules_under_test import SPELLINGS
from torch import Tensor

from cactus_decoding.core.rules import Lossless, Rule, parse_rule
from cactus_decoding.core.sampling.params import SamplingParams
from cactus_decoding.core.types import AcceptanceRule, Proposal, StepRows, judges_untempered
from cactus_decoding.core.verification.batched import verified_at_once, verify
from cactus_decoding.core.verification.match import match
from cactus_decoding.core.verification.tree import RandomNumbers, Tree, Walk
from cactus_decoding.engines.openai.relaxed_logits import relax_rows, relax_tokens

RULES = [text for text in SPELLINGS if not judges_untempered(parse_rule(text))]
SAMPLING, COUNT, VOCABULARY = SamplingParams(), 4, 12


def step(seed: int, *, deterministic: bool) -> tuple[StepRows, RandomNumbers]:
    """Return a chain of proposals with both models' rows, and the numbers that decide on it."""
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(COUNT + 1, VOCABULARY, generator=generator)
    draft = (logits[:-1] + torch.randn(COUNT, VOCABULARY, generator=generator)).softmax(-1)
    drafted = torch.multinomial(draft, 1, generator=generator).flatten().tolist()
    proposal = Proposal(drafted, None if deterministic else draft)
    rows = StepRows(logits, drafted, proposal, *[lambda logits, _: SAMPLING(logits)] * 2)
    return rows, RandomNumbers.draw(proposal, torch.Generator().manual_seed(seed), logits.device)


def in_a_batch(rule: AcceptanceRule, rows: StepRows, seed: int) -> tuple[int, int, list[bool]]:
    """Return what `verify` makes of the step: how many are kept, the next token, which ones lossless rejects."""
    proposal, generator = rows.proposal, torch.Generator().manual_seed(seed)
    target = rows.target_along(COUNT + 1)
    result = verify(rule, target, proposal.probs, torch.tensor(proposal.token_ids), generator)
    return int(result.num_accepted), int(result.next_token), result.relaxed.tolist()


def of(walk: Walk) -> tuple[int, int, list[bool]]:
    """Return the same of a walk."""
    relaxed = [False] * COUNT
    for trial in walk.trials:
        relaxed[trial.node] = trial.relaxed
    return len(walk.path), walk.next_token, relaxed


def other_places(rule: AcceptanceRule, rows: StepRows, numbers: RandomNumbers) -> Iterator[tuple[int, int, list[bool]]]:
    for tree in (Tree(rows), Tree(rows, SAMPLING, lazy=True)):
        yield of(match(tree, lambda position: rule, numbers.again()))
    yield of(verified_at_once(rule, rows, numbers.again()))


def kept_by_an_engine(rule: Rule, rows: StepRows, numbers: RandomNumbers) -> int | None:
    """Return how many an engine keeps that is given relaxed logits; None where rounding may decide."""
    logits, ids, draft = rows.logits[:-1], torch.tensor(rows.proposal.token_ids), rows.proposal.probs
    if draft is None or rule.lifts_one_token:
        token_logits = logits.gather(1, ids[:, None]).squeeze(1)
        relaxed: Tensor = relax_tokens(rule, token_logits, logits.logsumexp(-1), (logits, ids)).logits
        logits = logits.scatter(1, ids[:, None], relaxed[:, None])
    else:
        logits = relax_rows(rule, logits, draft, ids).logits
    h = logits.softmax(-1).gather(1, ids[:, None]).squeeze(1)
    p = torch.ones(COUNT) if draft is None else draft.gather(1, ids[:, None]).squeeze(1)
    for node in range(COUNT):
        needed = numbers.number(node) * p[node].item()
        if abs(needed - h[node].item()) < 1e-5:
            return None
        if needed >= h[node].item():
            return node
    return COUNT


@pytest.mark.parametrize("spelling", RULES)
@settings(max_examples=20, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32 - 1), deterministic=st.booleans())
def test_every_place_decides_alike(spelling: str, seed: int, deterministic: bool) -> None:
    rule = parse_rule(spelling)
    rows, numbers = step(seed, deterministic=deterministic)
    expected = in_a_batch(rule, rows, seed)
    assert [*other_places(rule, rows, numbers)] == [expected] * 3
    if rule.recovers_from_relaxed_target:
        assert kept_by_an_engine(rule, rows, numbers) in (expected[0], None)


def test_a_place_that_tests_losslessly_is_caught() -> None:
    rule, kept = parse_rule("cactus:delta=1.0"), 0
    for seed in range(20):
        rows, numbers = step(seed, deterministic=False)
        wrong = of(match(Tree(rows), lambda position: Lossless(), numbers))
        kept += wrong != in_a_batch(rule, rows, seed)
    assert kept
