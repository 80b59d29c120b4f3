"""Grows a tree of proposals level by level from a draft model's rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from cactus_decoding.core.divergences.rows import without
from cactus_decoding.core.drafting.trees.shape import ChildCounts, LookupTree, TreeShape
from cactus_decoding.core.sampling.noise import SharedNoise
from cactus_decoding.core.sampling.rows import check_drawn, draw
from cactus_decoding.core.types import ROOT, Proposal

ChildChooser = Callable[[Tensor, Tensor, int, int, Tensor], tuple[Tensor, Tensor]]
"""Chooses children; `choose_children` without its generator."""


@dataclass
class GrowingTree:
    """A tree to which children are added level by level, after tokens that the draft has read.

    ``parents`` are places, -1 for the text. ``rows`` are the draft's after the text and each token with children, by
    their places, ``[1, vocabulary]`` each. ``read`` are the places of tokens that the draft has read, in its order;
    ``read_parents`` are places in ``read``.
    """

    token_ids: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    drawn: list[bool] = field(default_factory=list)
    rows: dict[int, Tensor] = field(default_factory=dict)
    read: list[int] = field(default_factory=list)
    read_parents: list[int] = field(default_factory=list)

    def begin_reading(self, nodes: Sequence[int]) -> list[int]:
        """Record that the draft reads some nodes, ascending, and return their tokens."""
        places = {node: place for place, node in enumerate(self.read)}
        self.read += nodes
        self.read_parents += [places.get(self.parents[node], ROOT) for node in nodes]
        return [self.token_ids[node] for node in nodes]

    @property
    def reads_chain(self) -> bool:
        """Whether each token that the draft has read follows the one that it read before."""
        return self.read_parents == [*range(ROOT, len(self.read) - 1)]

    def tokens_to(self, node: int) -> list[int]:
        return Proposal(self.token_ids, None, self.parents).tokens_to(node)

    def add_level(
        self,
        nodes: Sequence[int],
        logits: Tensor,
        probs: Tensor,
        splits: Sequence[ChildCounts],
        looked_up: Sequence[Sequence[int]],
        choose: ChildChooser,
    ) -> list[int]:
        """Give some nodes, ascending, children and return their places.

        How many, and which are drawn, is settled before any is drawn. Logits and probs are ``[nodes, vocabulary]``, and
        splits say how many children each gets beside those that were looked up.
        """
        kinds = [(split, len(tokens)) for split, tokens in zip(splits, looked_up, strict=True)]
        chosen: dict[int, tuple[list[int], list[bool]]] = {}
        for kind in dict.fromkeys(kind for kind in kinds if any((*kind[0], kind[1]))):
            places = [place for place, each in enumerate(kinds) if each == kind]
            first = torch.tensor([looked_up[place] for place in places], dtype=torch.long, device=logits.device)
            rows = (logits, probs) if len(places) == len(nodes) else (logits[places], probs[places])
            token_ids, drawn = choose(*rows, sum(kind[0]), kind[0].drawn, first)
            check_drawn("draft", int(token_ids.max()), probs, len(self.token_ids))
            chosen |= zip(places, zip(token_ids.tolist(), drawn.tolist(), strict=True), strict=True)
        new: list[int] = []
        for place in sorted(chosen):
            self.rows[nodes[place]] = probs[place : place + 1]
            new += self._add(nodes[place], *chosen[place])
        return new

    def add_looked_up(self, node: int, token_ids: list[int], like: Tensor) -> list[int]:
        row = torch.zeros_like(like[:1])
        row[0, token_ids[0]] = 1.0  # what a draft that is sure of one of them would say
        self.rows[node] = row
        return self._add(node, token_ids, [False] * len(token_ids))

    def _add(self, node: int, token_ids: list[int], drawn: list[bool]) -> list[int]:
        places = [*range(len(self.token_ids), len(self.token_ids) + len(token_ids))]
        self.token_ids += token_ids
        self.drawn += drawn
        self.parents += [node] * len(token_ids)
        return places

    def proposal(self) -> Proposal:
        if not self.token_ids:
            return Proposal([], None)
        rows = torch.cat([row for _, row in sorted(self.rows.items())])
        return Proposal(self.token_ids, rows, self.parents, self.drawn)


def grow(
    shape: TreeShape,
    branches: Iterable[list[int]],
    limit: int,
    read: Callable[[GrowingTree, list[int]], tuple[Tensor, Tensor]],
    choose: ChildChooser,
) -> GrowingTree:
    """Grow a tree of up to ``limit`` levels; of each those tokens are read that may get children of the draft.

    Tokens that are looked up in the text are children in any case. ``read`` returns the draft's logits after some nodes
    and what children are drawn from, ``[nodes, vocabulary]``.
    """
    tree, growth, nodes = GrowingTree(), shape.grow(limit), [ROOT]
    found = LookupTree.of(branches, shape.num_looked_up, shape.max_children)
    growth.reserve(len(found.token_ids))
    looked_up = {ROOT: ROOT} if found.token_ids else {}  # of nodes that continue a match, where it is found
    while nodes:
        logits, probs = read(tree, nodes)
        behind = [found.children_of(looked_up.get(node)) for node in nodes]
        tokens = [[found.token_ids[i] for i in each] for each in behind]
        level = tree.add_level(nodes, logits, probs, growth.split(*_beside(logits, tokens)), tokens, choose)
        if any(behind):
            places = {(tree.parents[node], tree.token_ids[node]): node for node in level}
            for node, each in zip(nodes, behind, strict=True):
                looked_up |= {places[node, found.token_ids[i]]: i for i in each}
        nodes = [level[i] for i in growth.promising()]
    for node, place in [*looked_up.items()]:
        if node not in tree.rows:
            _add_rest(tree, node, place, found, probs)
    return tree


def _add_rest(tree: GrowingTree, node: int, place: int, found: LookupTree, probs: Tensor) -> None:
    if behind := found.children_of(place):
        tokens = [found.token_ids[i] for i in behind]
        new = tree.add_looked_up(node, tokens, probs)
        for child, i in zip(new, behind, strict=True):
            _add_rest(tree, child, i, found, probs)


def _beside(logits: Tensor, looked_up: list[list[int]]) -> tuple[Tensor, list[list[float]]]:
    """Return rows without tokens that were looked up, and how likely the draft takes these to be."""
    if not any(looked_up):
        return logits, [[] for _ in looked_up]
    rest, likely = logits.to(torch.float32, copy=True), []
    for row, tokens in zip(rest, looked_up, strict=True):
        likely.append((row[tokens] - row.logsumexp(-1)).exp().tolist())
        row[tokens] = torch.finfo(rest.dtype).min  # not minus infinity: there may be no others
    return rest, likely


def choose_children(
    logits: Tensor,
    probs: Tensor,
    count: int,
    num_drawn: int,
    generator: torch.Generator | None,
    looked_up: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return children for some rows of a draft, and which of them are drawn, ``[rows, count]`` each.

    Tokens that were looked up, ``[rows, looked_up]``, come first. Then come the likeliest by the logits, and at most
    ``num_drawn`` of the ``count`` others are drawn one after another from what ``probs`` hold besides; where that is
    used up, the next likeliest tokens take their place. How many are drawn, and which tokens are not, follows from the
    row alone. Where ``probs`` are NaN, the size of the vocabulary is returned instead of tokens.
    """
    taken = torch.empty(len(logits), 0, dtype=torch.long, device=logits.device) if looked_up is None else looked_up
    count = min(count, logits.shape[-1] - taken.shape[-1])
    num_drawn = min(num_drawn, count)
    uniforms = torch.rand(len(logits), num_drawn, dtype=torch.float64, generator=generator, device=logits.device)
    others = _beside_all(logits, taken) if taken.numel() else logits
    taken = torch.cat([taken, others.topk(count - num_drawn, dim=-1).indices], -1)
    drawn = torch.zeros_like(taken, dtype=torch.bool)
    for i in range(num_drawn):
        distribution = without(probs, taken)
        some_left = (distribution > 0).any(-1, keepdim=True)
        tokens = draw(distribution, uniforms[:, i]).unsqueeze(-1)
        if not bool(some_left.all()):
            tokens = torch.where(some_left, tokens, _beside_all(logits, taken).argmax(-1, keepdim=True))
        taken, drawn = torch.cat([taken, tokens], -1), torch.cat([drawn, some_left], -1)
    return torch.where(probs[:, :1].isnan(), probs.shape[-1], taken), drawn


def first_to_arrive(
    logits: Tensor, probs: Tensor, count: int, noise: SharedNoise, place: int, looked_up: Tensor
) -> tuple[Tensor, Tensor]:
    """Do what `choose_children` does, but with the tokens that come first by shared noise for those that are drawn."""
    count = min(count, logits.shape[-1] - looked_up.shape[-1])
    rows = []
    for row, scores, taken in zip(probs, logits, looked_up, strict=True):
        tokens = noise.tokens(row.index_fill(0, taken, 0.0), place, count)
        first = torch.cat([taken, torch.tensor(tokens, dtype=torch.long, device=row.device)])
        rows.append(torch.cat([first, _beside_all(scores, first).topk(count - len(tokens)).indices]))
    children = torch.stack(rows)
    drawn = torch.arange(children.shape[-1], device=probs.device) >= looked_up.shape[-1]
    return torch.where(probs[:, :1].isnan(), probs.shape[-1], children), drawn.expand(children.shape).clone()


def _beside_all(logits: Tensor, taken: Tensor) -> Tensor:
    """Return logits in which tokens that are taken come last, even after those that the draft excludes."""
    return logits.clamp(min=torch.finfo(logits.dtype).min).scatter(-1, taken, -torch.inf)
