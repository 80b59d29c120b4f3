"""Independent drafts as one tree: what it holds, the distribution of what is drawn, and responses."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from support.chi_square import FALSE_ALARM, rejects
from torch import Tensor

from cactus_decoding import IndependentDrafts, generate, load_pair
from cactus_decoding.core.drafting.trees.growing import GrowingTree
from cactus_decoding.core.sampling.rows import draw
from cactus_decoding.zoo.word_problems import EXAMPLES

ROW = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)


def drawn(shape: IndependentDrafts, generator: torch.Generator) -> GrowingTree:
    def choose(row: Tensor, count: int) -> list[int]:
        return draw(row.expand(count, -1), torch.rand(count, generator=generator)).tolist()

    return shape.draw(9, lambda tree, nodes: (ROW.log().expand(len(nodes), -1), ROW.expand(len(nodes), -1)), choose)


def test_equal_beginnings_stand_once_and_every_draft_goes_to_the_end() -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        tree = drawn(IndependentDrafts(drafts=4, depth=3), generator)
        proposal = tree.proposal()
        children: dict[int, list[int]] = {}
        for token, parent in zip(proposal.token_ids, proposal.parents, strict=True):
            children.setdefault(parent, []).append(token)
        assert all(len(set(tokens)) == len(tokens) <= 4 for tokens in children.values())
        leaves = [node for node in range(len(proposal.token_ids)) if node not in children]
        assert all(len(proposal.tokens_to(leaf)) == 3 for leaf in leaves)
        assert 1 <= len(leaves) <= 4
        assert all(proposal.drawn)
        assert len(proposal.probs) == len(children)


def test_the_first_child_has_the_draft_s_distribution_whatever_follows_it() -> None:
    generator = torch.Generator().manual_seed(1)
    trees = [drawn(IndependentDrafts(drafts=3, depth=1), generator).token_ids for _ in range(20_000)]
    assert FALSE_ALARM <= 1e-6
    assert not rejects(torch.tensor([tokens[0] for tokens in trees]), ROW)
    # given that there is a second one, it is drawn from the rest; and the likeliest is no good first child
    seconds = Counter((tokens[0], tokens[1]) for tokens in trees if len(tokens) > 1)
    share = seconds[1, 0] / (seconds[1, 0] + seconds[1, 2])
    assert share == pytest.approx(6 / 7, abs=5 * (6 / 49 / (seconds[1, 0] + seconds[1, 2])) ** 0.5)
    assert rejects(torch.tensor([min(tokens) for tokens in trees]), ROW)


def test_what_does_not_go_together_is_refused() -> None:
    pair = load_pair()
    with pytest.raises(ValueError, match="joint verification takes at most one drawn child a token"):
        generate(pair, EXAMPLES[0].prompt, tree="independent", verification="joint")
    with pytest.raises(ValueError, match="as many children everywhere"):
        generate(pair, EXAMPLES[0].prompt, tree="independent", verification="traversal", rule="clamped:width=1")
