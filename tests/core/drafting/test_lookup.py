"""Branches that are copied from where a text repeats itself, alone and beside a draft model's."""

from __future__ import annotations

import pytest
import torch
from support.loop_runs import check_proposal
from support.tiny_models import tiny_llama
from torch import Tensor

from cactus_decoding import BestFirstTree, ModelDrafter, NgramDrafter, SamplingParams, StaticTree
from cactus_decoding.core.drafting.registry import as_tree
from cactus_decoding.core.drafting.suffix_index import SuffixIndex
from cactus_decoding.core.drafting.trees.growing import GrowingTree, choose_children, grow
from cactus_decoding.core.drafting.trees.shape import LookupTree, TreeShape
from cactus_decoding.core.types import Proposal

TEXT = [1, 2, 3, 4, 1, 2, 5, 4, 1, 2, 3, 6, 1, 2]
"""Behind "1 2": 3 4 1, 5 4 1, 3 6 1."""


def test_branches_share_their_beginnings() -> None:
    found = LookupTree.of(SuffixIndex(TEXT).continuations(3), 99, lambda depth: 99)
    assert found == LookupTree([3, 6, 1, 5, 4, 1, 4, 1], [-1, 0, 1, -1, 3, 4, 0, 6])
    assert LookupTree.of(SuffixIndex(TEXT).continuations(3), 4, lambda depth: 99).token_ids == [3, 6, 1, 5]
    assert LookupTree.of(SuffixIndex(TEXT).continuations(3), 99, lambda depth: 1).token_ids == [3, 6, 1]


def propose(drafter: NgramDrafter, length: object, limit: int = 3) -> Proposal:
    drafter.begin_response(None, length)
    proposal = drafter.propose(TEXT, limit, lambda logits, _: logits, None)
    check_proposal(proposal, limit, 8)
    return proposal


def test_a_drafter_that_looks_up_proposes_what_the_shape_has_room_for() -> None:
    drafter = NgramDrafter()
    assert propose(drafter, BestFirstTree()).token_ids == [3, 6, 1, 5, 4, 1, 4, 1]
    assert propose(drafter, BestFirstTree(nodes=4)).token_ids == [3, 6, 1, 5]
    assert propose(drafter, StaticTree("1.2")).token_ids == [3, 6, 4]
    assert propose(drafter, StaticTree("1.2")).parents == [-1, 0, 0]
    chain = propose(drafter, StaticTree("1.1.1"))
    assert (chain.token_ids, chain.branches) == ([3, 6, 1], False)
    assert drafter.twin() == drafter
    drafter.begin_response(None, StaticTree("1.1"))
    drafter.begin_response(None, 4)
    assert not drafter.propose(TEXT, 2, lambda logits, _: logits, None).branches


@pytest.fixture(scope="module")
def draft() -> ModelDrafter:
    return ModelDrafter(tiny_llama(1))


@pytest.mark.parametrize(
    "shape", [BestFirstTree(nodes=9, lookup=4), StaticTree("2.1.1.1", lookup=3), BestFirstTree(nodes=3, lookup=3)]
)
def test_they_stand_beside_a_model_s_and_are_fixed(draft: ModelDrafter, shape: BestFirstTree | StaticTree) -> None:
    sampling = SamplingParams()
    for seed in range(5):
        draft.begin_response(None, shape)
        proposal = draft.propose(TEXT, 4, lambda logits, _: sampling(logits), torch.Generator().manual_seed(seed))
        check_proposal(proposal, 4, 8)
        found = LookupTree.of(SuffixIndex(TEXT).continuations(4), shape.lookup, shape.max_children)
        assert len(proposal.token_ids) <= (shape.nodes if isinstance(shape, BestFirstTree) else 99)
        for place in range(len(found.token_ids)):
            path = proposal.path_along(Proposal(found.token_ids, None, found.parents).tokens_to(place))
            assert not any(proposal.drawn[node] for node in path)
            assert [proposal.token_ids[node] for node in path] == Proposal(
                found.token_ids, None, found.parents
            ).tokens_to(place)
        for row, parent in zip(proposal.probs, sorted(set(proposal.parents)), strict=True):
            with torch.no_grad():
                read = draft.model(torch.tensor([TEXT + proposal.tokens_to(parent)])).logits[0, -1].softmax(-1)
            certain = row.max() == 1
            assert certain or torch.allclose(row, read, atol=1e-5)


@pytest.mark.parametrize("drawn", [1, 2])
@pytest.mark.parametrize("spelling", ["static=3.3.2,lookup=4", "best_first,nodes=8,lookup=8"])
def test_there_are_never_more_children_than_tokens(spelling: str, drawn: int) -> None:
    random = torch.Generator().manual_seed(drawn)
    for vocabulary in [2, 3, 4] * 10:
        shape = as_tree(spelling + (f",drawn={drawn}" if "static" in spelling else ""))
        assert isinstance(shape, TreeShape)
        text = torch.randint(0, vocabulary, (9,), generator=random).tolist()

        def read(tree: GrowingTree, nodes: list[int], vocabulary: int = vocabulary) -> tuple[Tensor, Tensor]:
            logits = torch.randn(len(nodes), vocabulary, generator=random) * 3
            return logits, logits.softmax(-1)

        def choose(logits: Tensor, probs: Tensor, count: int, num_drawn: int, taken: Tensor) -> tuple[Tensor, Tensor]:
            return choose_children(logits, probs, count, num_drawn, random, taken)

        proposal = grow(shape, SuffixIndex(text).continuations(4), 4, read, choose).proposal()
        check_proposal(proposal, 4, vocabulary)
        assert len(proposal.token_ids) <= shape.max_nodes
