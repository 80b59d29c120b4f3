"""A probe: how much of a draft's disagreement a small change of its last layer removes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cactus_decoding.training.acceptance.losses.base import Rows
from cactus_decoding.training.acceptance.losses.lk import Lk
from cactus_decoding.training.diagnosis.recording import Recorded

FOLDS = 2


@dataclass(frozen=True)
class Probe:
    r"""A low-rank change of a draft's last layer, trained for acceptance on some positions.

    .. math:: \log p'(x) = \log p(x) + (h A B + b)_x + \text{const}

    with h the draft's last hidden state, scaled to mean square 1.

    Attributes:
        rank: of A B.
        steps: of AdamW, with a learning rate that falls to 0.
        batch: positions of each step; fewer where the vocabulary is large.
        learning_rate: at the first step.

    More of any of them removes more where the draft words things otherwise, and spoils more where it calculates.
    """

    rank: int = 4
    steps: int = 200
    batch: int = 512
    learning_rate: float = 3e-3

    def fit(self, rows: Recorded, places: Tensor, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
        """Return A ``[width, rank]``, B ``[rank, vocabulary]`` and b ``[vocabulary]`` for positions ``places``."""
        generator, vocabulary = torch.Generator().manual_seed(seed), rows.draft.shape[1]
        width, loss = rows.hidden.shape[1], Lk()
        first = torch.randn(width, self.rank, generator=generator) / width**0.5
        weights = [first, torch.zeros(self.rank, vocabulary), torch.zeros(vocabulary)]
        for each in weights:
            each.requires_grad_()
        optimizer = torch.optim.AdamW(weights, lr=self.learning_rate)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, self.steps)
        batch = max(16, min(self.batch, 2**24 // vocabulary))
        for _ in range(self.steps):
            some = places[torch.randint(len(places), (batch,), generator=generator)]
            changed = rows.draft[some].float() + change(rows.hidden[some], *weights)
            value = loss(Rows.of(rows.target[some].float()[None], changed[None], rows.token_ids[some][None])).mean()
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            schedule.step()
        return weights[0].detach(), weights[1].detach(), weights[2].detach()

    def held_out(self, rows: Recorded) -> list[tuple[Tensor, tuple[Tensor, Tensor, Tensor]]]:
        """Return, for each fold of problems, its positions and what was fitted to all the others."""
        fold = rows.problem % FOLDS
        return [((fold == i).nonzero()[:, 0], self.fit(rows, (fold != i).nonzero()[:, 0])) for i in range(FOLDS)]


def change(hidden: Tensor, first: Tensor, second: Tensor, bias: Tensor) -> Tensor:
    """Return what a probe adds to logits, ``[positions, vocabulary]``."""
    scaled = hidden / hidden.pow(2).mean(-1, keepdim=True).sqrt().clamp_min(1e-6)
    return scaled @ first @ second + bias
