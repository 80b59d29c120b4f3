"""Bad input to `verify` and `audit` is refused by an error that names the argument; rounded input is not refused."""

from __future__ import annotations

import re

import pytest
import torch
from support.tables import all_of

from cactus_decoding.core.audit import audit
from cactus_decoding.core.checks import (
    check_choice,
    check_integer,
    check_number,
    check_probabilities,
    check_token_ids,
)
from cactus_decoding.core.verification.batched import verify


def test_audit_takes_rows_or_ids_of_the_draft_and_not_both() -> None:
    rows = torch.full((2, 4), 0.25)
    for given in ({}, {"draft_probs": rows, "draft_token_ids": torch.tensor([0, 1])}):
        with pytest.raises(ValueError, match=r"draft_probs.*draft_token_ids"):
            audit("lossless", rows, **given)
    with pytest.raises(ValueError, match=r"draft_probs must be \[2, 4\].*\[4\]"):
        audit("lossless", rows, rows[0])


@all_of("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("vocabulary", [32_000, 152_000])
@all_of("sharpness", [0.0, 0.1, 2.0, 8.0])
def test_rounded_softmax_rows_are_accepted(dtype: torch.dtype, vocabulary: int, sharpness: float) -> None:
    generator = torch.Generator().manual_seed(0)
    rows = (torch.randn(1, 2, vocabulary, generator=generator) * sharpness).softmax(-1).to(dtype)
    drafted = torch.multinomial(rows[:, 0].float(), 1, generator=generator)
    assert verify("lossless", rows, rows[:, :1], drafted, generator).num_accepted.tolist() == [1]
    assert audit("cactus:delta=1", rows, rows).kl.abs().max() < 0.05


@pytest.mark.parametrize("wrong", [1.02, 0.98])
def test_float32_rows_two_percent_off_are_refused(wrong: float) -> None:
    with pytest.raises(ValueError, match="sum to 1"):
        check_probabilities("rows", torch.full((4,), 0.25 * wrong))


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
