"""A world in which tree shapes draft and are verified losslessly, with rows that are drawn anew behind every token."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from cactus_decoding.core.drafting.trees.growing import choose_children
from cactus_decoding.core.drafting.trees.shape import TreeShape

VOCABULARY = 12


class Taken(NamedTuple):
    """A step: tokens that were emitted and proposed, and passes of the draft."""

    emitted: int
    proposed: int
    passes: int

    def seconds(self, draft_cost: float, token_cost: float) -> float:
        return 1 + draft_cost * self.passes + token_cost * self.proposed


@dataclass
class World:
    """Draft rows are as sharp as ``scale`` says; the target's differ from them by ``noise``."""

    scale: float = 2.0
    noise: float = 0.7
    seed: int = 0
    random: torch.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.random = torch.Generator().manual_seed(self.seed)

    def rows(self, count: int) -> tuple[Tensor, Tensor]:
        """Return logits of the draft and the target, ``[count, vocabulary]``."""
        draft = torch.randn(count, VOCABULARY, generator=self.random) * self.scale
        return draft, draft + torch.randn(count, VOCABULARY, generator=self.random) * self.noise

    def acceptance(self) -> float:
        """Return how likely a token that is drawn alone is kept."""
        draft, target = self.rows(20_000)
        return torch.minimum(draft.softmax(-1), target.softmax(-1)).sum(-1).mean().item()

    def step(self, shape: TreeShape) -> Taken:
        """Take a step."""
        limit = shape.begin_step()
        children: dict[int, list[tuple[int, int, bool]]] = {}  # place, token, whether it was drawn
        laws: dict[int, tuple[Tensor, Tensor]] = {}
        proposed = passes = 0
        chain = limit and not shape.branches
        while chain:
            draft, target = self.rows(1)
            children[proposed - 1] = [(proposed, int(draft.softmax(-1).multinomial(1, generator=self.random)), True)]
            laws[proposed - 1] = draft[0].softmax(-1), target[0].softmax(-1)
            proposed, passes = proposed + 1, passes + 1
            chain = proposed < limit and shape.should_continue(draft[0])
        if limit and shape.branches:
            growth, nodes = shape.grow(limit), [-1]
            while nodes:
                passes += 1
                draft, target = self.rows(len(nodes))
                new = 0
                for i, (node, split) in enumerate(zip(nodes, growth.split(draft, [[]] * len(nodes)), strict=True)):
                    if not any(split):
                        continue
                    row = draft[i : i + 1]
                    tokens, drawn = choose_children(row, row.softmax(-1), sum(split), split.drawn, self.random)
                    first = proposed + new
                    new += tokens.shape[-1]
                    children[node] = [
                        *zip(range(first, proposed + new), tokens[0].tolist(), drawn[0].tolist(), strict=True)
                    ]
                    laws[node] = draft[i].softmax(-1), target[i].softmax(-1)
                nodes = [proposed + i for i in growth.promising()]
                proposed += new
        shape.end_draft(proposed)
        path = self._walk(children, laws)
        shape.end_walk(path)
        shape.end_step(len(path))
        return Taken(len(path) + 1, proposed, passes)

    def _walk(
        self, children: dict[int, list[tuple[int, int, bool]]], laws: dict[int, tuple[Tensor, Tensor]]
    ) -> list[int]:
        """Return the places that lossless verification by matching keeps."""
        path, at = [], -1
        while at in children:
            draft, target = laws[at]
            law = draft.clone()
            law[[token for _, token, drawn in children[at] if not drawn]] = 0.0
            drawn = next((token for _, token, drawn in children[at] if drawn), None)
            if drawn is None:
                token = int(target.multinomial(1, generator=self.random))
            else:
                law /= law.sum()
                kept = torch.rand(1, generator=self.random).item() * law[drawn] < target[drawn]
                rest = (target - law).clamp(min=0)
                token = drawn if kept else int(rest.multinomial(1, generator=self.random))
            behind = [place for place, each, _ in children[at] if each == token]
            if not behind:
                break
            at = behind[0]
            path.append(at)
        return path
