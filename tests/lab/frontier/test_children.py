"""What width is worth: every number against enumeration of the package's own `match`, one node at a time."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from support.recorded_rows import agreeable_rows, float64_rows, one_sparse_step, some_rows
from support.tree_enumeration import TREE_SCHEMES, steps, uniform_shape
from torch import Tensor

from cactus_decoding import parse_rule
from cactus_decoding.core.policy.relaxation import relaxation_policy
from cactus_decoding.core.policy.vocabulary import Vocabulary
from cactus_decoding.lab.frontier.frontier import Frontier, chance_kept, frontier
from cactus_decoding.lab.frontier.relaxations import FAMILIES

RULES = ("lossless", "cactus:delta=0.2", "clamped:width=0.7", "ensemble:weight=0.4", "lenience:lenience=0.6", "typical",
         "top_k:k=2")  # fmt: skip


class OneNode:
    """Models of which only the rows behind the text matter."""

    def __init__(self, target: Tensor, draft: Tensor) -> None:
        self.rows, self.vocabulary = (target, draft), len(target)

    def __call__(self, text: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        return self.rows


def enumerated(rule, target: Tensor, draft: Tensor, count: int, *, drawn: bool) -> float:
    """Return how often a child is kept, by enumeration of every draw; a row with fewer tokens gets fewer children."""
    num_fixed = min(count - drawn, int((draft > 0).sum()))
    shape = uniform_shape(1, num_fixed, int(drawn))
    made = steps(TREE_SCHEMES["token"], rule, OneNode(target, draft), (), shape)
    return sum(step.probability for step in made if step.walk.path)


@pytest.mark.parametrize("drawn", [True, False])
@pytest.mark.parametrize("spelling", RULES)
@pytest.mark.parametrize("rows", [some_rows(), one_sparse_step()], ids=["dense", "sparse"])
def test_every_number_is_that_of_enumeration(rows, spelling: str, drawn: bool) -> None:
    rule, most = parse_rule(spelling), 4
    point = Frontier(rows, memory=20_000).measure(rule, max_children=most)
    found = point.kept_by_children if drawn else point.kept_by_fixed_children
    targets, drafts = (float64_rows(packed)[rows.visited] for packed in (rows.target, rows.draft))
    for count, interval in enumerate(found, start=1):
        expected = [enumerated(rule, q, p, count, drawn=drawn) for q, p in zip(targets, drafts, strict=True)]
        assert interval.value == pytest.approx(sum(expected) / len(expected), abs=1e-10)
    assert len(found) == most


def test_one_drawn_child_is_a_chain_s_proposal_and_more_children_are_kept_more_often() -> None:
    measured = Frontier(agreeable_rows())
    for rule in ("lossless", "clamped:width=1.0"):
        point = measured.measure(rule, max_children=7)
        assert point.kept_by_children[0].value == pytest.approx(point.acceptance.value, abs=1e-12)
        for kept in (point.kept_by_children, point.kept_by_fixed_children):
            assert all(fewer.value <= more.value + 1e-12 for fewer, more in pairwise(kept))
            assert kept[0].value + 0.01 < kept[-1].value <= 1 + 1e-12
        assert all(drawn.low < drawn.value < drawn.high for drawn in point.kept_by_children[:3])


def test_a_child_that_is_drawn_from_the_whole_row_would_be_told_apart() -> None:
    rows = some_rows()
    targets, drafts = (float64_rows(packed)[rows.visited] for packed in (rows.target, rows.draft))
    right = chance_kept(parse_rule("lossless"), targets, drafts, 2, drawn=True)
    fixed = drafts.argmax(-1, keepdim=True)
    wrong = torch.minimum(targets, drafts).scatter(-1, fixed, 0.0).sum(-1) + targets.gather(-1, fixed).squeeze(-1)
    assert (right - wrong).abs().max() > 1e-3


def test_where_a_policy_keeps_a_rule_away_the_lossless_one_decides() -> None:
    rows = some_rows()
    vocabulary = Vocabulary(tuple("1" if token < 3 else "a" for token in range(7)))
    measured = Frontier(rows, vocabulary=vocabulary)
    everywhere = measured.measure("clamped:width=2", max_children=3)
    nowhere = measured.measure("clamped:width=2", policy=relaxation_policy("digits", 1e-12), max_children=3)
    lossless = measured.measure("lossless", max_children=3)
    for found, expected in zip(nowhere.kept_by_children, lossless.kept_by_children, strict=True):
        assert found.value == pytest.approx(expected.value, abs=1e-14)
    assert everywhere.kept_by_children[0].value > lossless.kept_by_children[0].value


def test_nobody_pays_who_does_not_ask() -> None:
    point = frontier(some_rows(), [FAMILIES["clamped"]], points=2)[-1]
    assert point.kept_by_children == ()
    assert "kept_by_children" not in point.as_dict()
    asked = frontier(some_rows(), [FAMILIES["clamped"]], points=2, max_children=2)[-1]
    assert [len(asked.as_dict()[name]) for name in ("kept_by_children", "kept_by_fixed_children")] == [2, 2]
