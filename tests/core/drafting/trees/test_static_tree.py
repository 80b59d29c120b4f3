"""Trees that a draft model proposes: their shape, their rows, and what its cache holds afterwards."""

from __future__ import annotations

import pytest
import torch
from support.loop_runs import check_proposal

from cactus_decoding.core.drafting.trees.growing import choose_children
from cactus_decoding.core.types import Proposal


def test_children_are_the_likeliest_and_then_what_is_drawn_from_the_rest() -> None:
    logits = torch.randn(300, 6, generator=torch.Generator().manual_seed(0)).mul(2)
    probs = logits.softmax(-1)
    tokens, drawn = choose_children(logits, probs, 4, 2, torch.Generator().manual_seed(1))
    assert drawn.tolist() == [[False, False, True, True]] * 300
    assert torch.equal(tokens[:, :2], logits.topk(2).indices)
    assert all(len(set(row)) == 4 for row in tokens.tolist())
    every, _ = choose_children(logits, probs, 6, 3, None)
    assert every.sort(-1).values.tolist() == [[*range(6)]] * 300
    more, _ = choose_children(logits, probs, 9, 1, None)  # no more than there are
    assert more.shape == (300, 6)


def test_a_drawn_child_has_the_law_of_the_row_without_the_fixed_ones() -> None:
    row = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).expand(20_000, -1)
    tokens, _ = choose_children(row.log(), row, 2, 1, torch.Generator().manual_seed(2))
    share = (tokens[:, 1] == 1).double().mean().item()
    # five standard deviations: false alarms with probability 6e-7
    assert abs(share - 0.6) < 5 * (0.24 / 20_000) ** 0.5
    assert abs(share - 0.3) > 0.2  # what the whole row gives it


def test_where_the_row_is_used_up_the_next_likeliest_take_the_place_of_draws() -> None:
    logits = torch.tensor([[3.0, 2.0, 1.0, 0.0]]).expand(50, -1)
    for support, expected in ((1, [False, False, False]), (2, [False, True, False]), (3, [False, True, True])):
        probs = logits.masked_fill(torch.arange(4) >= support, -torch.inf).softmax(-1)
        tokens, drawn = choose_children(logits, probs, 3, 2, torch.Generator().manual_seed(3))
        assert drawn.tolist() == [expected] * 50
        assert {tuple(sorted(row)) for row in tokens.tolist()} == {(0, 1, 2)}


@pytest.mark.parametrize("num_drawn", [0, 1, 2, 3])
def test_tokens_that_the_draft_excludes_take_the_place_of_others_once(num_drawn: int) -> None:
    logits = torch.tensor([[0.0, -1.0, *[-torch.inf] * 3]]).expand(50, -1)
    for looked_up in ([], [0], [0, 1], [4, 1]):
        first = torch.tensor([looked_up], dtype=torch.long).expand(50, -1)
        tokens, drawn = choose_children(
            logits, logits.softmax(-1), 3, num_drawn, torch.Generator().manual_seed(3), first
        )
        assert all(len(set(row)) == 3 + len(looked_up) for row in tokens.tolist())
        assert len({tuple(row) for row in drawn.tolist()}) == 1  # of which kind they are does not depend on draws


@pytest.mark.parametrize(
    ("proposal", "wrong"),
    [
        (Proposal([1, 2], None, [-1, 1]), r"places before those of their children, but are \[-1, 1\]"),
        (Proposal([1, 2], None, [-1]), "places before those of their children"),
        (Proposal([1, 1], None, [-1, -1]), r"must differ, but are \[1, 1\] after \[-1, -1\]"),
        (Proposal([1, 2], None, [-1, -1], [True, False]), "rows that tokens of a tree were drawn from"),
        (Proposal([1, 2], None, [-1, -1], [True]), "whether it was drawn"),
        (Proposal([1, 2], torch.ones(2, 8), [-1, -1]), r"probs must be \[1, 8\], a row for each token that has"),
        (Proposal([1, 2, 3], None, [-1, 0, 1], [False] * 3), "at most the 2 tokens that it was asked for: 3"),
    ],
)
def test_trees_that_are_none_are_refused(proposal: Proposal, wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        check_proposal(proposal, 2, 8)
