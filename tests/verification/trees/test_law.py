"""Laws that are worked out no further than they are asked about."""

from __future__ import annotations

import pytest
import torch

from cactus_decoding.rules import Lossless
from cactus_decoding.types import ROOT
from cactus_decoding.verification.trees.law import Certainty, Law
from cactus_decoding.verification.trees.match import match
from cactus_decoding.verification.trees.tree import Children
from cactus_decoding.verification.trees.walk import Judgement, RandomNumbers


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_single_probabilities_are_those_of_the_row(dtype: torch.dtype) -> None:
    weights = torch.rand(1_003, generator=torch.Generator().manual_seed(0)).to(dtype) ** 8
    for law in (Law(weights), Law(weights).without([3, 5]), Law(weights.double() / weights.double().sum())):
        assert [law[token] for token in range(1_003)] == law.probs.tolist()  # to the last bit
        assert law.probs.sum().item() == pytest.approx(1, abs=1e-14)
    rest = Law(weights).without([3, 5])
    assert rest[3] == rest[5] == 0
    assert rest[4] / rest[6] == pytest.approx((weights[4] / weights[6]).item(), rel=1e-6)
    assert Law(weights).without([])[3] > 0


def test_what_little_is_left_keeps_its_digits() -> None:
    law = Law(torch.tensor([1.0, 1e-30, 3e-30]).double())
    assert law.without([0])[1] == pytest.approx(0.25, rel=1e-15)
    assert 1 - law[0] == 0  # where a difference would have nothing left
    assert Law(torch.tensor([1.0, 0.0])).without([0]).probs.tolist() == [0.0, 0.0]


def test_a_certainty_is_a_row_of_one_token() -> None:
    law = Certainty(2, 4)
    assert [law[token] for token in range(4)] == law.probs.tolist() == [0.0, 0.0, 1.0, 0.0]
    assert law.weights is law.probs
    assert law.without([0, 1])[2] == 1
    assert law.without([2]).probs.tolist() == [0.0] * 4


@pytest.mark.parametrize(("number", "made"), [(0.1, False), (0.9, True)])
def test_no_row_is_made_where_the_lossless_test_passes(number: float, made: bool) -> None:
    target, draft = Law(torch.tensor([0.5, 0.5])), Law(torch.tensor([0.0, 1.0]))

    class OneProposal:
        def children(self, node: int) -> Children | None:
            return Children([0], [1], 0, 2, draft) if node == ROOT else None

        def target(self, node: int) -> Law:
            return target

    match(OneProposal(), lambda node: Judgement(Lossless()), RandomNumbers(torch.tensor([number, 0.0, 0.0]), 1))
    assert ("probs" in vars(target)) is ("probs" in vars(draft)) is made
