"""Trees that are as large as is worth their time: what they learn, and that they come to a chain or no draft too."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from support.loop_runs import decided, run
from support.tiny_models import tiny_llama
from torch import Tensor

from cactus_decoding import AdaptiveTree, ModelDrafter, NgramDrafter
from cactus_decoding.core.drafting.registry import as_tree
from cactus_decoding.core.drafting.trees.adaptive_tree import Chances, WayChooser
from cactus_decoding.core.drafting.trees.growing import GrowingTree, choose_children, grow
from cactus_decoding.core.rules import Lossless
from cactus_decoding.core.types import Proposal, StepRows
from cactus_decoding.core.verification.match import match
from cactus_decoding.core.verification.tree import RandomNumbers, Tree
from cactus_decoding.engines.transformers.cached_model import CachedModel

GIVEN = "adaptive,nodes=12,depth=4,draft_cost=0.1,token_cost=0.01"


VOCABULARY = 12


class Taken(NamedTuple):
    """A step: tokens that were emitted and proposed, and passes of the draft."""

    emitted: int
    proposed: int
    passes: int

    def seconds(self, draft_cost: float, token_cost: float) -> float:
        return 1 + draft_cost * self.passes + token_cost * self.proposed


class World:
    """A world in which shapes draft and are verified losslessly, with rows that are drawn anew after every token.

    The draft's logits are as sharp as ``scale`` says; the target's differ from them by ``noise``.
    """

    def __init__(self, scale: float = 2.0, noise: float = 0.7, seed: int = 0) -> None:
        self.scale, self.noise, self.random = scale, noise, torch.Generator().manual_seed(seed)

    def rows(self, count: int) -> tuple[Tensor, Tensor]:
        """Return logits of the draft and the target, ``[count, vocabulary]``."""
        draft = torch.randn(count, VOCABULARY, generator=self.random) * self.scale
        return draft, draft + torch.randn(count, VOCABULARY, generator=self.random) * self.noise

    def acceptance(self) -> float:
        """Return how likely a token that is drawn alone is kept."""
        draft, target = self.rows(20_000)
        return torch.minimum(draft.softmax(-1), target.softmax(-1)).sum(-1).mean().item()

    def step(self, shape: AdaptiveTree) -> Taken:
        limit, passes, known = shape.begin_step(), 0, dict[int, tuple[Tensor, Tensor]]()

        def read(tree: GrowingTree | None, nodes: list[int]) -> tuple[Tensor, Tensor]:
            nonlocal passes
            passes += 1
            draft, target = self.rows(len(nodes))
            known.update(zip(nodes, zip(draft, target, strict=True), strict=True))
            return draft, draft.softmax(-1)

        if limit and shape.branches:
            proposal = grow(
                shape, [], limit, read, lambda *given: choose_children(*given[:4], self.random, given[4])
            ).proposal()
        else:
            tokens, goes_on = list[int](), limit > 0
            while goes_on:
                logits, probs = read(None, [len(tokens) - 1])
                tokens.append(int(probs[0].multinomial(1, generator=self.random)))
                goes_on = len(tokens) < limit and shape.should_continue(logits[0])
            rows = [known[node - 1][0].softmax(-1) for node in range(len(tokens))]
            proposal = Proposal(tokens, torch.stack(rows) if rows else None)
        count = len(proposal.token_ids)
        shape.end_draft(count)
        target = torch.stack([known[node][1] if node in known else self.rows(1)[1][0] for node in range(-1, count)])
        rows = StepRows(target, proposal.token_ids, proposal, *[lambda logits, _: logits.softmax(-1)] * 2)
        numbers = RandomNumbers.draw(proposal, self.random, target.device)
        path = match(Tree(rows), lambda position: Lossless(), numbers).path
        shape.end_walk(path)
        shape.end_step(len(path))
        return Taken(len(path) + 1, count, passes)


def best_chain(chance: float, draft_cost: float, token_cost: float, most: int) -> float:
    """Return the most tokens per second that a fixed number of proposals reaches; 0 of them too."""
    return max(sum(chance**i for i in range(k + 1)) / (1 + k * (draft_cost + token_cost)) for k in range(most + 1))


def settled(world: World, draft_cost: float, token_cost: float, steps: int = 2500) -> tuple[float, list[Taken]]:
    shape = AdaptiveTree(draft_cost=draft_cost, token_cost=token_cost)
    taken = [world.step(shape) for _ in range(steps)][500:]
    seconds = sum(each.seconds(draft_cost, token_cost) for each in taken)
    return sum(each.emitted for each in taken) / seconds, taken


def mean_proposed(taken: list[Taken]) -> float:
    return sum(each.proposed for each in taken) / len(taken)


@pytest.mark.slow
@pytest.mark.parametrize(("draft_cost", "token_cost"), [(0.05, 0.15), (0.1, 0.3), (0.02, 0.05)])
def test_where_tokens_cost_much_it_is_as_fast_as_the_best_chain(draft_cost: float, token_cost: float) -> None:
    world = World()
    rate, taken = settled(world, draft_cost, token_cost)
    # 2000 steps: the rate itself is known to about 1 percent
    assert rate > 0.97 * best_chain(world.acceptance(), draft_cost, token_cost, 16)
    assert mean_proposed(taken) < 8


@pytest.mark.slow
def test_where_tokens_are_free_it_grows_wide_and_is_faster_than_any_chain() -> None:
    world = World()
    rate, taken = settled(world, 0.2, 0.0)
    assert rate > 1.1 * best_chain(world.acceptance(), 0.2, 0.0, 16)
    assert mean_proposed(taken) > 10


@pytest.mark.slow
def test_where_drafting_takes_longer_than_it_saves_there_is_no_draft() -> None:
    rate, taken = settled(World(), 1.5, 0.1)
    assert rate > 0.98
    assert sum(each.proposed == 0 for each in taken) > 0.9 * len(taken)


def test_ways_are_compared_by_what_they_bring_and_tried_again() -> None:
    ways, chosen = WayChooser(("a", "b")), []
    for step in range(1000):
        way = ways.choose()
        chosen.append(way)
        rate = {"a": 1.0, "b": 0.5 if step < 300 else 2.0}[way]
        ways.learn(way, rate, 1, 1.0)
        if step == 299:
            assert ways.best == "a"
            assert 0 < chosen[30:].count("b") < 20
    assert ways.best == "b"
    assert chosen[-100:].count("a") < 30


def test_chances_become_what_is_seen() -> None:
    chances = Chances()
    assert chances.of(0.42) == pytest.approx(0.45)
    for i in range(400):
        chances.learn(0.42, kept=i % 4 == 0)
    assert chances.of(0.48) == pytest.approx(0.25, abs=0.02)
    assert chances.of(0.52) == pytest.approx(0.55)


def test_given_costs_make_a_seed_repeatable(target: CachedModel) -> None:
    drafter = ModelDrafter(tiny_llama(1))
    first, again = (decided(run(target, drafter, k=as_tree(GIVEN), seed=5, length=200)) for _ in range(2))
    assert first == again
    assert min(len(tokens) for tokens, *_ in first) == 0  # no draft was tried too
    assert any(len(tokens) > 4 for tokens, *_ in first)


def test_it_learns_from_a_text_that_is_looked_up(target: CachedModel) -> None:
    shape = as_tree(GIVEN)
    steps = run(target, NgramDrafter(), k=shape, length=200)
    assert any(step.path for step in steps)
    assert len({step.num_drafted for step in steps}) > 2
    assert shape._looked_up.of(1.0) != Chances().of(1.0)


def test_measured_costs_do_not_change_what_is_learnt_about(target: CachedModel) -> None:
    shape = AdaptiveTree()
    for seed in range(3):
        steps = run(target, ModelDrafter(tiny_llama(1)), k=shape, seed=seed, length=120)
        assert all(step.proposal.depth <= 16 and step.num_drafted <= 32 for step in steps)
    assert all(shape._ways.rate(way) > 0 for way in ("chain", "branches", "no draft"))
    assert shape._price >= 0
    assert torch.isfinite(torch.tensor(shape._price))
