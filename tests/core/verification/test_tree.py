"""Proposals as trees, their rows, and chains walked beside batches of chains."""

from __future__ import annotations

import pytest
import torch
from support.exact_enumeration import make_rows
from torch import Tensor

from cactus_decoding import Metrics, parse_rule, stream, verify_block
from cactus_decoding.core.sampling.noise import SharedNoise, SharedNumbers
from cactus_decoding.core.types import ROOT, Decision, Proposal, StepRows
from cactus_decoding.core.verification.coupled import coupled
from cactus_decoding.core.verification.joint import joint
from cactus_decoding.core.verification.match import match
from cactus_decoding.core.verification.tree import RandomNumbers, Tree, Walk, with_relaxed

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
    return joint(tree, lambda position: Decision(judge), RandomNumbers(numbers, len(proposal.token_ids)))


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


BRANCHED = [-1, -1, 0, 1, 0, 2, 3, 5], [False, True, True, True, False, True, True, True]
CHAIN = [-1, 0, 1, 2, 3, 4], [True] * 6


def drawn(parents: list[int], drawn: list[bool], seed: int) -> Proposal:
    """Return a proposal that is drawn from rows as drafters draw it; a fixed child is its row's likeliest token."""
    probs = DRAFT.repeat(2, 1)[: len({*parents})]
    rows, taken, ids = dict(zip(sorted({*parents}), probs, strict=True)), {}, [0] * len(parents)
    generator = torch.Generator().manual_seed(seed)
    for node in sorted(range(len(parents)), key=lambda node: drawn[node]):
        row = rows[parents[node]].clone()
        row[taken.setdefault(parents[node], [])] = 0
        ids[node] = int(torch.multinomial(row, 1, generator=generator)) if drawn[node] else int(row.argmax())
        taken[parents[node]].append(ids[node])
    return Proposal(ids, probs, parents, drawn)


@pytest.mark.parametrize("scheme", [match, coupled, joint])
@pytest.mark.parametrize("nodes", [BRANCHED, CHAIN], ids=["tree", "chain"])
def test_a_relaxed_token_would_be_lost_if_its_position_alone_were_judged_losslessly(scheme, nodes) -> None:
    """Schemes that mark relaxed tokens on the way mark those of the definition, and what comes later does not count."""
    count, rule, lossless = len(nodes[0]), parse_rule("clamped:width=2"), parse_rule("lossless")
    target, accepted, relaxed, beyond = TARGET.repeat(2, 1)[: count + 1], 0, 0, 0
    for seed in range(60):
        proposal, generator = drawn(*nodes, seed), torch.Generator().manual_seed(seed + 1000)
        numbers = RandomNumbers.draw(proposal, generator, torch.device("cpu"))
        if scheme is coupled:
            numbers = SharedNumbers(SharedNoise(seed), 2)
        tree, unused = Tree(rows_of(proposal, target)), numbers.again()
        walked = scheme(tree, lambda position: Decision(rule), numbers)
        found = with_relaxed(walked, scheme, tree, lambda position: Decision(rule), unused)
        plain = scheme(tree, lambda position: Decision(lossless), unused.again())
        if scheme is not joint:
            assert found == walked
        assert with_relaxed(plain, scheme, tree, lambda position: Decision(lossless), unused) == plain
        accepted += sum(visit.accepted for visit in walked.visits)
        relaxed += sum(visit.relaxed for visit in found.visits)
        beyond += sum(visit.accepted and visit.node not in plain.path for visit in walked.visits)
    assert 0 < relaxed < beyond < accepted  # what the lossless walk as a whole does not keep is more


def test_relaxed_tokens_of_a_block_are_those_that_the_weights_say() -> None:
    """By the formula: with q for h at one position, no prefix passes that reaches it."""
    rule, target, p, seen = parse_rule("clamped:width=2"), TARGET.repeat(2, 1)[:7], DRAFT.repeat(2, 1)[:6], 0
    h = torch.stack([rule.relaxed_target(*rows) for rows in zip(target[:6], p, strict=True)])

    def kept(rows: Tensor, ids: list[int], numbers: list[float]) -> int:
        weight, longest = 1.0, 0
        for i, token in enumerate(ids):
            weight = min(1.0, weight * (rows[i, token] / p[i, token]).item())
            passes = weight
            if i < 5:
                z = (weight * rows[i + 1] - p[i + 1]).clamp(min=0).sum().item()
                passes = z / (z + 1 - weight) if weight < 1 else 1.0
            longest = i + 1 if numbers[i] < passes else longest
        return longest

    for seed in range(60):
        ids = drawn(*CHAIN, seed).token_ids
        result = verify_block(rule, target, p, torch.tensor(ids), torch.Generator().manual_seed(seed))
        numbers = torch.rand(1, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))[0].tolist()
        assert result.num_accepted == kept(h, ids, numbers)
        alone = [torch.cat([h[:i], target[i : i + 1], h[i + 1 :]]) for i in range(6)]
        expected = [i < int(result.num_accepted) and kept(alone[i], ids, numbers) <= i for i in range(6)]
        assert result.relaxed.tolist() == expected
        seen += sum(expected)
    assert seen > 20


def test_coupled_tokens_are_relaxed_where_the_same_noise_makes_another_token_of_the_target(pair) -> None:
    counted, expected = Metrics(), 0
    for seed in range(2):
        noise = SharedNoise(seed)
        asked = {"verification": "coupled", "rule": "clamped:width=3", "temperature": 1.0, "max_new_tokens": 60}
        for step in stream(pair, "Tom has", seed=seed, num_speculative_tokens=6, **asked):
            counted += Metrics.of(step)
            for visit in step.visits:
                place = len(step.rows.text(step.proposal.parents[visit.node]))
                expected += visit.accepted and noise.token(visit.target_probs, place) != visit.token_id
    assert counted.relaxed == expected > 0
