"""Block verification: `joint` on chains, of which trees' tests enumerate the law; here batches, responses, refusals."""

from __future__ import annotations

import pytest
import torch
from support.exact_enumeration import make_rows
from support.rules_under_test import SPELLINGS
from support.tables import all_of

from cactus_decoding import NgramDrafter, generate, parse_rule, verify_block

ROW = torch.ones(1, 1)
OTHERS = [text for text in SPELLINGS if parse_rule(text).relaxed_target(ROW, ROW) is None]


def test_relaxed_tokens_are_those_beyond_the_lossless_prefix() -> None:
    target, draft = (rows[:3].unsqueeze(0) for rows in make_rows(6, 4, seed=18))
    target = torch.cat([target, target[:, :1]], 1)
    seen = 0
    for seed in range(60):
        ids = torch.multinomial(draft[0], 1, generator=torch.Generator().manual_seed(seed)).T
        same = [
            verify_block(rule, target, draft, ids, torch.Generator().manual_seed(seed))
            for rule in ("lossless", "clamped:width=2")
        ]
        lossless, clamped = (int(result.num_accepted) for result in same)
        assert same[0].relaxed.sum() == 0
        assert same[1].relaxed.sum() == max(clamped - lossless, 0)
        seen += clamped > lossless
    assert seen > 0


# --- in a response ---


@all_of("spelling", OTHERS)
def test_rules_that_look_at_the_drafted_token_are_refused(spelling: str) -> None:
    row = torch.full((2, 4), 0.25)
    with pytest.raises(ValueError, match="does not depend on the drafted token"):
        verify_block(spelling, row, row[:1], torch.tensor([0]))


def test_blocks_at_temperature_zero_are_greedy(pair, prompt: str) -> None:
    greedy = generate(pair, prompt, temperature=0.0)
    assert generate(pair, prompt, temperature=0.0, verification="block").token_ids == greedy.token_ids
    rule = {"rule": "clamped:width=1", "budget": 0.1}
    assert generate(pair, prompt, temperature=0.0, verification="block", **rule).token_ids == greedy.token_ids


def test_lookup_drafts_are_verified_in_blocks_only_without_a_loss(pair, prompt: str) -> None:
    drafter, pair.drafter = pair.drafter, NgramDrafter()
    try:
        greedy = generate(pair, prompt, temperature=0.0)
        assert generate(pair, prompt, temperature=0.0, verification="block").token_ids == greedy.token_ids
        with pytest.raises(ValueError, match="needs a draft model and a fixed number of proposals"):
            generate(pair, prompt, rule="clamped:width=1", verification="block")
    finally:
        pair.drafter = drafter


@pytest.mark.parametrize("length", ["confidence:threshold=0.3", "auto"])
def test_steps_of_varying_length_are_verified_in_blocks_only_without_a_loss(pair, prompt: str, length: str) -> None:
    given = {"verification": "block", "num_speculative_tokens": length}
    greedy = generate(pair, prompt, temperature=0.0)
    assert generate(pair, prompt, temperature=0.0, **given).token_ids == greedy.token_ids
    with pytest.raises(ValueError, match="a fixed number of proposals"):
        generate(pair, prompt, rule="clamped:width=1", **given)


def test_other_words_for_verification_are_refused(pair, prompt: str) -> None:
    with pytest.raises(ValueError, match="traversal, coupled, fly, but is 'blocks'"):
        generate(pair, prompt, verification="blocks")
    with pytest.raises(ValueError, match="does not depend on the drafted token"):
        generate(pair, prompt, rule="cactus:delta=1", verification="block")
