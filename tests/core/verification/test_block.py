"""Block verification: `joint` on chains, of which trees' tests enumerate the law; here batches and refusals."""

from __future__ import annotations

import pytest
import torch
from support.exact_enumeration import make_rows
from support.rules_under_test import SPELLINGS
from support.tables import all_of

from cactus_decoding import parse_rule, verify_block

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


@all_of("spelling", OTHERS)
def test_rules_that_look_at_the_drafted_token_are_refused(spelling: str) -> None:
    row = torch.full((2, 4), 0.25)
    with pytest.raises(ValueError, match="does not depend on the drafted token"):
        verify_block(spelling, row, row[:1], torch.tensor([0]))
