"""Bad input to `verify` and `audit` is refused by an error that names the argument; rounded input is not refused."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from support.tables import all_of
from torch import Tensor

from cactus_decoding.core.audit import audit
from cactus_decoding.core.checks import (
    check_choice,
    check_integer,
    check_number,
    check_probabilities,
    check_token_ids,
)
from cactus_decoding.core.verification.batched import verify

BATCH, PROPOSALS, VOCABULARY = 2, 3, 4


def arguments() -> dict[str, Tensor]:
    """Return valid arguments of `verify`."""
    return {
        "target_probs": torch.full((BATCH, PROPOSALS + 1, VOCABULARY), 0.25),
        "draft_probs": torch.full((BATCH, PROPOSALS, VOCABULARY), 0.25),
        "draft_token_ids": torch.zeros(BATCH, PROPOSALS, dtype=torch.int64),
    }


def entry(value: float) -> Callable[[Tensor], Tensor]:
    """Return a change that puts a value into the last row."""

    def change(tensor: Tensor) -> Tensor:
        tensor = tensor.clone()
        tensor[-1, -1, 0] = value
        return tensor

    return change


BAD_ROWS = [
    pytest.param(entry(float("nan")), ValueError, "NaN", id="nan"),
    pytest.param(entry(float("inf")), ValueError, "sums to inf", id="infinite"),
    pytest.param(entry(-0.1), ValueError, r"\[0, 1\].*-0\.1", id="negative"),
    pytest.param(entry(0.5), ValueError, r"sum to 1.*1\.25", id="too much"),
    pytest.param(lambda rows: rows * 0, ValueError, "sum to 1", id="zeros"),
    pytest.param(lambda rows: rows.log(), ValueError, r"\[0, 1\]", id="log-probabilities"),
    pytest.param(lambda rows: rows.long(), TypeError, "int64", id="integers"),
    pytest.param(lambda rows: rows.tolist(), TypeError, "list", id="list"),
    pytest.param(lambda rows: rows.numpy(), TypeError, "ndarray", id="array"),
]
BAD_SHAPES = [
    pytest.param(lambda rows: rows[..., :0], ValueError, "must be", id="empty vocabulary"),
    pytest.param(lambda rows: rows[0], ValueError, "must be", id="no batch"),
    pytest.param(lambda rows: rows[:1], ValueError, "must be", id="smaller batch"),
    pytest.param(lambda rows: rows[:, :1], ValueError, "must be", id="fewer positions"),
    pytest.param(lambda rows: rows.unsqueeze(0), ValueError, "must be", id="one dimension more"),
]


@pytest.mark.parametrize("name", ["target_probs", "draft_probs"])
@all_of("change, error, message", [*BAD_ROWS, *BAD_SHAPES])
def test_verify_refuses_bad_rows(name: str, change: Callable, error: type[Exception], message: str) -> None:
    given = arguments()
    given[name] = change(given[name])
    with pytest.raises(error, match=rf"(?s)(?=.*{name})(?=.*({message}))"):
        verify("lossless", **given)


@pytest.mark.parametrize("name", ["target_probs", "draft_probs"])
@all_of("change, error, message", BAD_ROWS)
def test_audit_refuses_bad_rows(name: str, change: Callable, error: type[Exception], message: str) -> None:
    given = arguments()
    rows = {"target_probs": given["draft_probs"], "draft_probs": given["draft_probs"]}
    rows[name] = change(rows[name])
    with pytest.raises(error, match=rf"(?s)(?=.*{name})(?=.*({message}))"):
        audit("lossless", **rows)


BAD_IDS = [
    pytest.param(lambda ids: ids + VOCABULARY, ValueError, r"\[0, 4\).*4 to 4", id="too large"),
    pytest.param(lambda ids: ids - 1, ValueError, r"\[0, 4\).*-1 to -1", id="negative"),
    pytest.param(lambda ids: ids.double(), TypeError, "float64", id="floats"),
    pytest.param(lambda ids: ids.bool(), TypeError, "bool", id="bools"),
    pytest.param(lambda ids: ids.tolist(), TypeError, "list", id="list"),
    pytest.param(lambda ids: ids[..., :1], ValueError, "must be", id="fewer positions"),
    pytest.param(lambda ids: ids[:1], ValueError, "must be", id="smaller batch"),
    pytest.param(lambda ids: ids.unsqueeze(0), ValueError, "must be", id="one dimension more"),
    pytest.param(lambda ids: ids[0, 0], ValueError, "must be", id="a number"),
]


@all_of("change, error, message", BAD_IDS)
def test_bad_ids_are_refused(change: Callable, error: type[Exception], message: str) -> None:
    given = arguments()
    ids = change(given["draft_token_ids"])
    # where only shapes disagree, the rows or the ids may be named
    named = "draft_token_ids|target_probs" if message == "must be" else "draft_token_ids"
    with pytest.raises(error, match=rf"(?s)(?=.*({named}))(?=.*({message}))"):
        verify("lossless", given["target_probs"], given["draft_probs"], ids)
    with pytest.raises(error, match=rf"(?s)(?=.*draft_token_ids)(?=.*({message}))"):
        audit("lossless", given["draft_probs"], draft_token_ids=ids)


@pytest.mark.parametrize(
    ("count", "error", "message"),
    [
        (torch.tensor([0, PROPOSALS + 1]), ValueError, r"\[0, 4\)"),
        (torch.tensor([-1, 0]), ValueError, r"\[0, 4\)"),
        (torch.tensor([1]), ValueError, r"\[2\]"),
        (torch.tensor([1.0, 1.0]), TypeError, "float"),
        ([1, 1], TypeError, "list"),
        (1, TypeError, "int"),
    ],
)
def test_bad_counts_are_refused(count: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"num_draft_tokens.*{message}"):
        verify("lossless", **arguments(), num_draft_tokens=count)
    single = {name: value[0] for name, value in arguments().items()}
    if error is TypeError and not isinstance(count, Tensor):
        with pytest.raises(error, match=f"num_draft_tokens.*{message}"):
            verify("lossless", **single, num_draft_tokens=count)


@pytest.mark.parametrize("name", ["target_probs", "draft_probs"])
def test_call_without_batch_names_the_argument_too(name: str) -> None:
    single = {key: value[0] for key, value in arguments().items()}
    with pytest.raises(TypeError, match=f"{name}.*list"):
        verify("lossless", **(single | {name: single[name].tolist()}))
    with pytest.raises(ValueError, match=f"{name} must sum to 1"):
        verify("lossless", **(single | {name: single[name] / 2}))


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
