"""Laws that are worked out no further than they are asked about."""

from __future__ import annotations

import math

import pytest
import torch
from support.decisions import as_given

from cactus_decoding.core.policy.position import Distribution, OneHotDistribution, Position
from cactus_decoding.core.rules import Lossless
from cactus_decoding.core.types import ROOT, Decision, Proposal, StepRows
from cactus_decoding.core.verification.match import match
from cactus_decoding.core.verification.tree import RandomNumbers, Tree


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_single_probabilities_are_those_of_the_row(dtype: torch.dtype) -> None:
    weights = torch.rand(1_003, generator=torch.Generator().manual_seed(0)).to(dtype) ** 8
    for law in (
        Distribution(weights),
        Distribution(weights).without([3, 5]),
        Distribution(weights.double() / weights.double().sum()),
    ):
        assert [law[token] for token in range(1_003)] == law.probs.tolist()  # to the last bit
        assert law.probs.sum().item() == pytest.approx(1, abs=1e-14)
    rest = Distribution(weights).without([3, 5])
    assert rest[3] == rest[5] == 0
    assert rest[4] / rest[6] == pytest.approx((weights[4] / weights[6]).item(), rel=1e-6)
    assert Distribution(weights).without([])[3] > 0


def test_what_little_is_left_keeps_its_digits() -> None:
    law = Distribution(torch.tensor([1.0, 1e-30, 3e-30]).double())
    assert law.without([0])[1] == pytest.approx(0.25, rel=1e-15)
    assert 1 - law[0] == 0  # where a difference would have nothing left
    assert Distribution(torch.tensor([1.0, 0.0])).without([0]).probs.tolist() == [0.0, 0.0]


def test_a_certainty_is_a_row_of_one_token() -> None:
    law = OneHotDistribution(2, 4)
    assert [law[token] for token in range(4)] == law.probs.tolist() == [0.0, 0.0, 1.0, 0.0]
    assert law.weights is law.probs
    assert law.without([0, 1])[2] == 1
    assert law.without([2]).probs.tolist() == [0.0] * 4


@pytest.mark.parametrize(("number", "made"), [(0.1, False), (0.9, True)])
def test_no_row_is_made_where_the_lossless_test_passes(number: float, made: bool) -> None:
    proposal = Proposal([1], torch.tensor([[0.0, 1.0]]))
    tree = Tree(StepRows(torch.full((2, 2), 0.5), [1], proposal, as_given, as_given))
    match(tree, lambda position: Decision(Lossless()), RandomNumbers(torch.tensor([number, 0.0, 0.0]), 1))
    position = tree.at(ROOT)
    assert position is not None
    assert position.draft is not None
    assert ("probs" in vars(position.target)) is ("probs" in vars(position.draft)) is made


def test_rows_of_nan_are_no_laws() -> None:
    rows, draft = torch.full((3, 2), 0.5), torch.full((2, 2), 0.5)
    draft[1, 0] = math.nan
    rows[0, 1] = math.nan
    step = StepRows(rows, [7, 1, 0], Proposal([1, 0], draft), as_given, as_given)
    with pytest.raises(ValueError, match="the target's logits after 1 tokens give no probabilities"):
        Position(step, ROOT).target  # noqa: B018
    with pytest.raises(ValueError, match="the draft's logits after 2 tokens give no probabilities"):
        Position(step, 0).draft  # noqa: B018
