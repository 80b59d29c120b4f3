"""What every drafter owes the loop, checked for each kind of drafter; drafters that owe it still are noticed."""

from __future__ import annotations

import pytest
from support.drafters import CHECKS, KINDS, WRONG, Bench, check_failures, check_law, first_draws, wrong_kind

LONG = {check_failures: {"model", "tree", "exiting target"}, check_law: {"model", "tree", "growing tree", "early exit"}}
"""Checks that take seconds, and the kinds for which they are fast tests all the same."""


def cases():
    for kind in KINDS:
        for check in CHECKS:
            marks = [pytest.mark.slow] if check in LONG and kind not in LONG[check] else []
            yield pytest.param(kind, check, id=f"{kind}-{check.__name__.removeprefix('check_')}", marks=marks)


@pytest.mark.parametrize(("kind", "check"), list(cases()))
def test_every_drafter_keeps_the_contract(kind, check):
    check(Bench(KINDS[kind]))


@pytest.mark.parametrize("wrong", WRONG)
def test_a_drafter_that_breaks_it_is_noticed(wrong):
    drafter, check = WRONG[wrong]
    with pytest.raises((AssertionError, ValueError)):
        check(Bench(wrong_kind(drafter)))


@pytest.mark.parametrize(
    ("kind", "draws"), [("model", True), ("tree", True), ("translated", True), ("ngram", False), ("suffix", False)]
)
def test_laws_are_checked_where_tokens_are_drawn(kind, draws):
    assert (first_draws(Bench(KINDS[kind]), 2) is not None) == draws
