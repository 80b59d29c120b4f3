"""A probe: how much of a draft's disagreement a small change of its last layer removes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from cactus_decoding.training.acceptance.losses.base import Rows
from cactus_decoding.training.acceptance.losses.lk import Lk
from cactus_decoding.training.diagnosis.recording import Recorded

FOLDS = 2
MOST_TOKENS = 4096
"""A probe changes no more tokens: those that both models give the most at its positions; its loss counts the others
as one outcome. What it does to acceptance is measured on whole rows all the same."""
AT_ONCE = 2**25
"""Numbers of rows that are looked at together."""


class Outcomes(NamedTuple):
    """What a probe learns from.

    Attributes:
        tokens: that it changes, ascending, ``[tokens]``.
        target: logarithms of the target's probabilities of these and of all others together, ``[positions, outcomes]``;
            without the others where there are none.
        draft: likewise of the draft.
    """

    tokens: Tensor
    target: Tensor
    draft: Tensor

    @classmethod
    def of(cls, rows: Recorded, places: Tensor) -> Outcomes:
        """Return the outcomes at some positions."""
        vocabulary = rows.target.shape[1]
        if vocabulary <= MOST_TOKENS:
            return cls(torch.arange(vocabulary), rows.target[places], rows.draft[places])
        parts = places.split(max(1, AT_ONCE // vocabulary))
        mass = sum(each[some].float().exp().sum(0) for each in (rows.target, rows.draft) for some in parts)
        tokens = torch.as_tensor(mass).topk(MOST_TOKENS).indices.sort().values
        target, draft = (
            torch.cat([_narrowed(each[some].float(), tokens) for some in parts]) for each in (rows.target, rows.draft)
        )
        return cls(tokens, target, draft)


def _narrowed(log_probs: Tensor, tokens: Tensor) -> Tensor:
    kept = log_probs[:, tokens]
    return torch.cat([kept, log_probs.index_fill_(1, tokens, -torch.inf).logsumexp(-1, keepdim=True)], -1).half()


@dataclass(frozen=True)
class Probe:
    r"""A low-rank change of a draft's last layer, trained for acceptance on some positions.

    .. math:: \log p'(x) = \log p(x) + (h A B + b)_x + \text{const}

    with h the draft's last hidden state, scaled to mean square 1.

    Attributes:
        rank: of A B.
        steps: of AdamW, with a learning rate that falls to 0.
        batch: positions of each step.
        learning_rate: at the first step.

    More of any of them removes more where the draft words things otherwise, and spoils more where it calculates.
    """

    rank: int = 4
    steps: int = 200
    batch: int = 512
    learning_rate: float = 3e-3

    def fit(
        self, rows: Recorded, places: Tensor, seed: int = 0, report: Callable[[int], None] = lambda done: None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return A ``[width, rank]``, B ``[rank, vocabulary]`` and b ``[vocabulary]`` for positions ``places``."""
        generator, vocabulary = torch.Generator().manual_seed(seed), rows.draft.shape[1]
        width, loss, (tokens, target, draft) = rows.hidden.shape[1], Lk(), Outcomes.of(rows, places)
        first = torch.randn(width, self.rank, generator=generator) / width**0.5
        weights = [first, torch.zeros(self.rank, draft.shape[1]), torch.zeros(draft.shape[1])]
        of_tokens = torch.arange(draft.shape[1]) < len(tokens)  # the others as a whole stay what they are
        for each in weights:
            each.requires_grad_()
        optimizer = torch.optim.AdamW(weights, lr=self.learning_rate)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, self.steps)
        batch = max(16, min(self.batch, 2**24 // draft.shape[1]))
        for step in range(self.steps):
            # of few positions each is drawn often, and looked at once
            some, often = torch.randint(len(places), (batch,), generator=generator).unique(return_counts=True)
            changed = draft[some].float() + change(rows.hidden[places[some]], *weights) * of_tokens
            nowhere = torch.zeros(1, len(some), dtype=torch.long)  # the loss does not ask which tokens stand there
            value = (loss(Rows.of(target[some].float()[None], changed[None], nowhere)) * often).sum() / batch
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            schedule.step()
            report(step + 1)
        whole = torch.zeros(self.rank + 1, vocabulary)
        whole[:, tokens] = torch.cat([weights[1], weights[2][None]]).detach()[:, : len(tokens)]
        return weights[0].detach(), whole[:-1], whole[-1]

    def held_out(
        self, rows: Recorded, report: Callable[[int], None] = lambda done: None
    ) -> list[tuple[Tensor, tuple[Tensor, Tensor, Tensor]]]:
        """Return, for each fold of problems, its positions and what was fitted to all the others."""
        fold, found = rows.problem % FOLDS, []
        for i in range(FOLDS):
            others = (fold != i).nonzero()[:, 0]
            weights = self.fit(rows, others, report=partial(_report_behind, report, i * self.steps))
            found.append(((fold == i).nonzero()[:, 0], weights))
        return found


def _report_behind(report: Callable[[int], None], before: int, done: int) -> None:
    report(before + done)


def change(hidden: Tensor, first: Tensor, second: Tensor, bias: Tensor) -> Tensor:
    """Return what a probe adds to logits, ``[positions, vocabulary]``."""
    scaled = hidden / hidden.pow(2).mean(-1, keepdim=True).sqrt().clamp_min(1e-6)
    return scaled @ first @ second + bias
