"""Block verification: `joint` on chains, of which trees' tests enumerate the law; here refusals."""

from __future__ import annotations

import pytest
import torch
from support.rules_under_test import SPELLINGS
from support.tables import all_of

from cactus_decoding import parse_rule, verify_block
from cactus_decoding.core.rules.base import row_rule

OTHERS = [text for text in SPELLINGS if row_rule(parse_rule(text)) is None]


@all_of("spelling", OTHERS)
def test_rules_that_look_at_the_drafted_token_are_refused(spelling: str) -> None:
    row = torch.full((2, 4), 0.25)
    with pytest.raises(ValueError, match="does not depend on the drafted token"):
        verify_block(spelling, row, row[:1], torch.tensor([0]))
