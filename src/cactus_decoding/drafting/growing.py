"""Grows a tree of proposals level by level from a draft model's rows."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from cactus_decoding.divergences.rows import without
from cactus_decoding.sampling.drawing import check_drawn, draw
from cactus_decoding.types import Proposal


@dataclass
class GrowingTree:
    """A tree whose last level may get children.

    Attributes:
        token_ids: so far, level by level.
        parents: of each the place of the one that it follows, -1 for the text.
        drawn: of each whether it was drawn.
        rows: of the draft behind the text and behind each level but the last, ``[level, vocabulary]`` each.
        level: the places of the last level, at first that of the text.
    """

    token_ids: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    drawn: list[bool] = field(default_factory=list)
    rows: list[Tensor] = field(default_factory=list)
    level: range = range(-1, 0)

    def add_level(
        self, logits: Tensor, probs: Tensor, count: int, num_drawn: int, generator: torch.Generator | None
    ) -> None:
        """Give each token of the last level children; which of them are drawn is decided without a look at the others.

        Args:
            logits: of the draft behind these tokens, ``[level, vocabulary]``.
            probs: what they are drawn from, likewise.
            count: how many children each gets; fewer only where the vocabulary ends.
            num_drawn: how many of them are drawn.
            generator: source of the random numbers, on the device of the rows.
        """
        token_ids, drawn = choose_children(logits, probs, count, num_drawn, generator)
        check_drawn("draft", int(token_ids.max()), probs, len(self.token_ids))
        self.rows.append(probs)
        for parent, tokens, kinds in zip(self.level, token_ids.tolist(), drawn.tolist(), strict=True):
            self.token_ids += tokens
            self.drawn += kinds
            self.parents += [parent] * len(tokens)
        end = self.level.stop if self.level.start >= 0 else 0
        self.level = range(end, len(self.token_ids))

    def proposal(self) -> Proposal:
        """Return what has grown."""
        return Proposal(self.token_ids, torch.cat(self.rows), self.parents, self.drawn)


def choose_children(
    logits: Tensor, probs: Tensor, count: int, num_drawn: int, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """Return children for some rows of a draft, and which of them are drawn, ``[rows, count]`` each.

    The first are the likeliest tokens by the logits. The others are drawn one after another from what the row holds
    besides; where that is used up, the next likeliest tokens take their place. How many are drawn, and which tokens are
    not, follows from the row alone.

    Args:
        logits: ``[rows, vocabulary]``.
        probs: the law, after temperature and truncation, ``[rows, vocabulary]``.
        count: how many children.
        num_drawn: how many of them are drawn at most.
        generator: source of the random numbers: one a row and a drawn child.

    Example:
        >>> row = torch.tensor([[0.5, 0.3, 0.2]])
        >>> choose_children(row.log(), torch.tensor([[1.0, 0.0, 0.0]]), 2, 1, None)[0]  # nothing is left to draw
        tensor([[0, 1]])
    """
    count = min(count, logits.shape[-1])
    num_drawn = min(num_drawn, count)
    uniforms = torch.rand(len(logits), num_drawn, dtype=torch.float64, generator=generator, device=logits.device)
    taken = logits.topk(count - num_drawn, dim=-1).indices
    drawn = torch.zeros_like(taken, dtype=torch.bool)
    for i in range(num_drawn):
        law = without(probs, taken)
        some_left = (law > 0).any(-1, keepdim=True)
        tokens = draw(law, uniforms[:, i]).unsqueeze(-1)
        if not bool(some_left.all()):
            others = logits.masked_fill(probs > 0, -torch.inf).scatter(-1, taken, -torch.inf)
            tokens = torch.where(some_left, tokens, others.argmax(-1, keepdim=True))
        taken, drawn = torch.cat([taken, tokens], -1), torch.cat([drawn, some_left], -1)
    return taken, drawn
