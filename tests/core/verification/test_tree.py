"""Proposals as trees, their rows, and chains walked beside batches of chains."""

from __future__ import annotations

import pytest
import torch
from support.exact_enumeration import make_rows
from torch import Tensor

from cactus_decoding import parse_rule, verify_block
from cactus_decoding.core.types import ROOT, Proposal, StepRows
from cactus_decoding.core.verification.joint import joint
from cactus_decoding.core.verification.tree import RandomNumbers, Tree, Walk

TARGET, DRAFT = (rows.sqrt() / rows.sqrt().sum(-1, keepdim=True) for rows in make_rows(4, 5, seed=31))
PARENTS, DRAWN = [-1, -1, 0, 1, 0], [False, True, True, True, False]


def rows_of(proposal: Proposal, target: Tensor, text: tuple[int, ...] = (9, 9)) -> StepRows:
    """Return rows whose probabilities are the target's: row 0 follows the text, row i + 1 proposal i."""

    def softmax(logits: Tensor, _: list[int]) -> Tensor:
        return logits.softmax(-1)

    return StepRows(target.log(), [*text, *proposal.token_ids], proposal, softmax, softmax)


def test_children_of_a_proposal_are_the_fixed_ones_and_then_the_drawn() -> None:
    proposal = Proposal([3, 1, 2, 0, 1], DRAFT[:3], PARENTS, DRAWN)
    tree = Tree(rows_of(proposal, TARGET[[0, 1, 2, 3, 4, 0]]))
    root, first, second = (tree.at(node) for node in (ROOT, 0, 1))
    assert (root.nodes, root.token_ids, root.num_fixed, root.drafted) == ([0, 1], [3, 1], 1, 1)
    assert (first.nodes, first.token_ids, first.num_fixed, first.drafted) == ([4, 2], [1, 2], 1, 1)
    assert (second.nodes, second.num_fixed, second.drafted) == ([3], 0, 0)
    assert tree.at(2) is tree.at(3) is tree.at(4) is None
    for node, (row, children) in enumerate(zip(DRAFT[:3], (root, first, second), strict=True), ROOT):
        torch.testing.assert_close(children.draft.probs, row / row.sum())
        torch.testing.assert_close(children.target.probs, TARGET[node + 1])
    expected = DRAFT[1].clone()
    expected[1] = 0
    torch.testing.assert_close(first.distribution(1).probs, expected / expected.sum())
    assert first.distribution(0).probs.tolist() == [0, 1, 0, 0]
    assert [proposal.tokens_to(node) for node in range(ROOT, 5)] == [[], [3], [1], [3, 2], [1, 0], [3, 1]]
    assert [root.child_with(token, other_than=1) for token in (3, 1, 2)] == [0, None, None]


def test_rows_of_a_tree_are_made_one_by_one_behind_their_own_texts() -> None:
    asked: list[list[int]] = []

    def softmax(logits: Tensor, token_ids: list[int]) -> Tensor:
        assert len(logits) == 1
        asked.append(token_ids)
        return logits.softmax(-1)

    proposal = Proposal([3, 1, 2, 0, 1], DRAFT[:3], PARENTS, DRAWN)
    rows = StepRows(torch.zeros(6, 4), [9, 3, 1, 2, 0, 1], proposal, softmax, softmax)
    for node in (ROOT, 2, 3, 2):
        rows.target_after(node)
    assert asked == [[9], [9, 3, 2], [9, 1, 0]]
    rows.target_of(3)
    assert asked[-1] == [9, 1]
    assert rows.draft(0) is None
    law = rows.draft(2)
    assert law[1] == 0
    assert law.sum() == pytest.approx(1)


def walk(proposal: Proposal, target: Tensor, numbers: Tensor, rule: str) -> Walk:
    tree, judge = Tree(rows_of(proposal, target)), parse_rule(rule)
    return joint(tree, lambda position: judge, RandomNumbers(numbers, len(proposal.token_ids)))


@pytest.mark.parametrize("rule", ["lossless", "clamped:width=1", "ensemble:weight=0.3"])
def test_a_chain_is_decided_by_joint_as_batches_of_blocks_decide_it(rule: str) -> None:
    """The same numbers serve the same ends, also where a sequence uses two of three columns."""
    seen = set()
    for seed in range(60):
        generator = torch.Generator().manual_seed(seed)
        ids = torch.multinomial(DRAFT[:3], 1, generator=generator)[:, 0]
        state = generator.get_state()
        result = verify_block(rule, TARGET[:4], DRAFT[:3], ids, generator)
        generator.set_state(state)
        proposal = Proposal(ids.tolist(), DRAFT[:3])
        numbers = RandomNumbers.draw(proposal, generator, torch.device("cpu"))
        decided = walk(proposal, TARGET[:4], numbers.all, rule)
        assert decided.path == list(range(int(result.num_accepted)))
        assert decided.next_token == int(result.next_token)
        short = Proposal(ids[:2].tolist(), DRAFT[:2])
        used = walk(short, TARGET[:3], numbers.all[[0, 1, 3]], rule)
        generator.set_state(state)
        result = verify_block(rule, TARGET[:4], DRAFT[:3], ids, generator, num_draft_tokens=torch.tensor(2))
        assert (len(used.path), used.next_token) == (int(result.num_accepted), int(result.next_token))
        seen.add((len(decided.path), result.relaxed.any().item()))
    assert len(seen) >= 4
