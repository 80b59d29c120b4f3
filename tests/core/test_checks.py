"""Bad input to `verify` and `audit` is refused by an error that names the argument; rounded input is not refused."""

from __future__ import annotations

import re

import pytest
import torch

from cactus_decoding.core.audit import audit
from cactus_decoding.core.checks import check_choice, check_integer, check_number, check_token_ids


def test_audit_takes_rows_or_ids_of_the_draft_and_not_both() -> None:
    rows = torch.full((2, 4), 0.25)
    for given in ({}, {"draft_probs": rows, "draft_token_ids": torch.tensor([0, 1])}):
        with pytest.raises(ValueError, match=r"draft_probs.*draft_token_ids"):
            audit("lossless", rows, **given)
    with pytest.raises(ValueError, match=r"draft_probs must be \[2, 4\].*\[4\]"):
        audit("lossless", rows, rows[0])


def test_messages_of_the_small_checks() -> None:
    for check, message in [
        (lambda: check_number("x", 2, 0, 1), "x must be in [0, 1], but is 2"),
        (lambda: check_number("x", 0, 0, 1, low_open=True), "x must be in (0, 1], but is 0"),
        (lambda: check_number("x", 1.0, 0, 1, high_open=True), "x must be in [0, 1), but is 1.0"),
        (lambda: check_integer("k", 0, 1), "k must be at least 1, but is 0"),
        (lambda: check_integer("k", 9, 1, 8), "k must be between 1 and 8, but is 9"),
        (lambda: check_choice("mode", "c", ("a", "b")), "mode must be one of a, b, but is 'c'"),
    ]:
        with pytest.raises(ValueError, match=re.escape(message)):
            check()
    check_token_ids("ids", torch.zeros(0, dtype=torch.int64), 4)  # nothing to refuse
    check_number("x", 1, 0, 1)
    check_integer("k", 8, 1, 8)
