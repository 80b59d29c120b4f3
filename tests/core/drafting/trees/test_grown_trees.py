"""Trees that grow where the draft is likely to be right: which tokens they hold, and that responses keep their law."""

from __future__ import annotations

import math

import pytest
import torch
from support.tables import all_of
from support.tree_enumeration import (
    TREE_SCHEMES,
    Children,
    Choices,
    LazyTree,
    Models,
    divergence,
    lossless_distance,
    product_law,
    respond,
)
from torch import Tensor

from cactus_decoding import BestFirstTree, Budget, StaticTree, parse_rule
from cactus_decoding.core.divergences.rows import without
from cactus_decoding.core.drafting.suffix_index import SuffixIndex
from cactus_decoding.core.drafting.trees.growing import GrowingTree, choose_children, grow
from cactus_decoding.core.drafting.trees.shape import Growth, TreeShape
from cactus_decoding.core.policy.decide import Policy

EXACT = 1e-12


def level(*rows: list[float]) -> torch.Tensor:
    return torch.tensor(rows).log()


SURE, UNSURE = [0.97, 0.01, 0.01, 0.01], [0.3, 0.3, 0.2, 0.2]


def grown(growth: Growth, rows: list[list[list[float]]]) -> list[list[tuple[int, int]]]:
    """Return the children of each level, where the draft's rows are those."""
    splits = []
    for each in rows:
        splits.append([tuple(split) for split in growth.split(level(*each), [[]] * len(each))])
        if not growth.promising():
            break
    return splits


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
@pytest.mark.parametrize("others", [-1.0, -torch.inf])
def test_what_is_looked_up_may_be_all_that_the_draft_allows(dtype: torch.dtype, others: float) -> None:
    rows = torch.tensor([[others, others, 0.0, others]], dtype=dtype)  # behind 1 comes 2, as before
    tree = grow(
        BestFirstTree(nodes=1, depth=1, lookup=1),
        SuffixIndex([1, 2, 1]).continuations(1),
        1,
        lambda tree, nodes: (rows, rows.float().softmax(-1)),
        lambda *given: choose_children(*given[:4], None, given[4]),
    )
    assert (tree.token_ids, tree.parents) == ([2], [-1])


def test_where_the_draft_is_sure_it_is_a_chain_of_likeliest_tokens() -> None:
    assert grown(BestFirstTree(nodes=4).grow(9), [[SURE]] * 4) == [[(1, 0)]] * 4


def test_where_the_draft_is_unsure_it_is_a_chain_of_draws_and_then_has_branches() -> None:
    assert grown(BestFirstTree(nodes=3).grow(9), [[UNSURE]] * 3) == [[(0, 1)]] * 3
    [[first], *_] = grown(BestFirstTree(nodes=4, depth=1).grow(9), [[UNSURE]])
    assert first == (3, 1)
    [[first], *_] = grown(BestFirstTree(nodes=3, depth=1, drawn=0).grow(9), [[UNSURE]])
    assert first == (3, 0)


@pytest.mark.parametrize(
    "shape", [BestFirstTree(), BestFirstTree(24, 5, 3), BestFirstTree(7, 3, 2, 0), BestFirstTree(1)]
)
def test_there_are_no_more_tokens_than_asked_for_and_hardly_fewer(shape: BestFirstTree) -> None:
    generator, total = torch.Generator().manual_seed(0), 0
    for _ in range(50):
        growth, count, num_read = shape.grow(shape.max_draft_tokens), 0, 1
        for _level in range(shape.max_draft_tokens):
            splits = growth.split(torch.randn(num_read, 20, generator=generator) * 3, [[]] * num_read)
            assert len(splits) == num_read
            assert all(split.fixed <= shape.width and split.drawn <= shape.drawn for split in splits)
            new, promising = sum(map(sum, splits)), growth.promising()
            assert promising == sorted(promising)
            assert all(0 <= i < new for i in promising)
            count, num_read = count + new, len(promising)
            if not promising:
                break
        assert not promising
        assert 1 <= count <= shape.nodes
        total += count
    assert total > 0.8 * 50 * shape.nodes


def test_logits_that_are_none_are_refused() -> None:
    with pytest.raises(ValueError, match="NaN or infinite"):
        BestFirstTree().grow(3).split(torch.full((1, 4), torch.nan), [[]])


# The law, enumerated: every draft, every decision, several steps


class GrownTree(LazyTree):
    """A tree that is whole before it is looked at: each level is settled, then drawn, then the next one."""

    def __init__(self, models: Models, text: tuple[int, ...], shape: TreeShape, choices: Choices, limit: int) -> None:
        super().__init__(models, text, shape, choices, limit)
        if limit := min(limit, shape.max_draft_tokens):
            self._take(grow(shape, SuffixIndex(text).continuations(limit), limit, self._read, self._choose))
        self._finish()

    def draft(self, node: int) -> Tensor:
        return self._models((*self._text, *self.tokens_to(node)))[1]

    def _read(self, tree: GrowingTree, nodes: list[int]) -> tuple[Tensor, Tensor]:
        rows = torch.stack([self._models((*self._text, *tree.tokens_to(node)))[1] for node in nodes])
        return rows.log(), rows

    def _choose(self, _: Tensor, probs: Tensor, count: int, num_drawn: int, given: Tensor) -> tuple[Tensor, Tensor]:
        """Do what `choose_children` does, with every outcome of its draws."""
        chosen = [self._children_of(*each, count, num_drawn) for each in zip(probs, given.tolist(), strict=True)]
        return torch.tensor([tokens for tokens, _ in chosen]), torch.tensor([drawn for _, drawn in chosen])

    def _children_of(self, draft: Tensor, given: list[int], count: int, num_drawn: int) -> tuple[list[int], list[bool]]:
        likeliest = [token for token in draft.argsort(descending=True).tolist() if token not in given]
        tokens = given + likeliest[: count - num_drawn]
        drawn = [False] * len(tokens)
        for _ in range(num_drawn):
            law = without(draft, torch.tensor(tokens, dtype=torch.long))
            drawn.append(bool(law.sum() > 0))
            left = (token for token in likeliest if token not in tokens)
            tokens.append(self._choices.token(law) if drawn[-1] else next(left))
        return tokens, drawn

    def _take(self, tree: GrowingTree) -> None:
        """Take over what has grown."""
        self.token_ids, self.parents = tree.token_ids, tree.parents
        for node in tree.rows:
            nodes = [i for i, parent in enumerate(tree.parents) if parent == node]
            nodes.sort(key=lambda i: tree.drawn[i])
            tokens = [tree.token_ids[i] for i in nodes]
            num_fixed = sum(not tree.drawn[i] for i in nodes)
            self._children[node] = Children(nodes, tokens, num_fixed)

    def _finish(self) -> None:
        """Leave the tree as it is."""

    def children(self, node: int) -> Children | None:
        return self._children.get(node)

    def _drop(self, node: int, index: int) -> None:
        """Leave out one child of a node, and what is behind it."""
        children = self._children[node]
        assert children is not None
        self._children.pop(children.nodes[index], None)
        nodes = [each for i, each in enumerate(children.nodes) if i != index]
        tokens = [each for i, each in enumerate(children.token_ids) if i != index]
        num_fixed = children.num_fixed - (index < children.num_fixed)
        left = children._replace(nodes=nodes, token_ids=tokens, num_fixed=num_fixed)
        self._children[node] = left if nodes else None

    def _drawn(self) -> list[tuple[int, int]]:
        """Return the nodes with a drawn child, and which it is."""
        return [
            (node, len(each.nodes) - 1)
            for node, each in self._children.items()
            if each is not None and each.num_fixed < len(each.nodes)
        ]


class UnlikelyDrawsDropped(GrownTree):
    """Wrong: a drawn child of less than a third of the draft's row is dropped."""

    def _finish(self) -> None:
        for node, index in self._drawn()[::-1]:
            children = self._children[node]
            assert children is not None
            if self.draft(node)[children.token_ids[index]] < 1 / 3:
                self._drop(node, index)


SHAPES = {
    "narrow": BestFirstTree(nodes=5, depth=3, width=1),
    "wide": BestFirstTree(nodes=6, depth=3, width=2),
    "unsure of draws": BestFirstTree(nodes=5, depth=3, width=2, acceptance=0.8),
    "two levels": BestFirstTree(nodes=6, depth=2, width=1),
    "fixed only": BestFirstTree(nodes=4, depth=3, width=2, drawn=0),
    "drawn only": BestFirstTree(nodes=3, depth=3, width=0),
    "with what the text repeats": BestFirstTree(nodes=4, depth=3, width=1, lookup=2),
    "static, with what the text repeats": StaticTree("1.1", lookup=2),
}


SEEDS = (4, 8)
"""Of toys in which these trees depend on what is drawn."""


@all_of("name", TREE_SCHEMES)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_lossless_responses_have_the_target_s_law(name: str, shape: TreeShape) -> None:
    for seed in SEEDS:
        assert lossless_distance(TREE_SCHEMES[name], Models(3, seed), shape, 4, GrownTree) < EXACT


@pytest.mark.parametrize("label", ["narrow", "wide", "unsure of draws"])
def test_these_trees_depend_on_what_is_drawn(label: str) -> None:
    """Or there would be nothing to test: behind other tokens of the same parent the rest of the tree differs."""
    forms, choices = set(), Choices()
    for _ in choices:
        tree = GrownTree(Models(3, SEEDS[1]), (), SHAPES[label], choices, 9)
        forms.add((tuple(tree.parents), tuple(sorted(tree._drawn()))))
    assert len(forms) > 1


@pytest.mark.parametrize("name", [name for name in TREE_SCHEMES if name != "coupled"])  # which draws by itself
def test_nodes_that_are_dropped_for_what_was_drawn_are_noticed(name: str) -> None:
    scheme, models = TREE_SCHEMES[name], [Models(3, seed) for seed in (*SEEDS, 5)]
    assert max(lossless_distance(scheme, each, SHAPES["narrow"], 4, UnlikelyDrawsDropped) for each in models) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize(
    "spelling",
    ["lossless", "cactus:delta=1", "ensemble:weight=0.3", "lenience:lenience=0.6", "clamped:width=1", "top_k:k=2"],
)
def test_responses_move_by_no_more_than_they_spend(spelling: str) -> None:
    rule, models = parse_rule(spelling), Models(3, 8)
    expected = product_law(lambda text: models(text)[0], 3, 4)
    for label, budget in (
        ("narrow", 0.05),
        ("unsure of draws", 0.3),
        ("wide", 0.3),
        ("wide", math.inf),
        ("with what the text repeats", 0.3),
    ):
        policy = Policy(rule, Budget(nats=budget))
        responses = respond(TREE_SCHEMES["token"], policy, models, SHAPES[label], 4, grow=GrownTree)
        assert sum(responses.law.values()) == pytest.approx(1, abs=EXACT)
        assert divergence(responses.law, expected) <= responses.mean_spent + EXACT
        assert responses.most_spent <= budget
