"""Gates: at each position either the draft's distribution is emitted, or the target's."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from cactus_decoding.core.declared import Setting
from cactus_decoding.core.rules.base import RowRule, draft_probability_of, probability_of
from cactus_decoding.core.rules.ensemble import Ensemble
from cactus_decoding.core.types import Verdict

# takes q and p, ``[..., vocabulary]`` in float64, with p = 0 where q = 0
RowsFunction = Callable[[Tensor, Tensor], Tensor]


def on_rows(says: RowsFunction, target_probs: Tensor, draft_probs: Tensor | None, token_ids: Tensor) -> Tensor:
    """Apply a function to q and p; where the draft is deterministic, once for each token that it may have proposed."""
    q = target_probs.double()
    if draft_probs is None:
        q = q.unsqueeze(-2)
        return says(q, torch.where(q > 0, functional.one_hot(token_ids, q.shape[-1]).double(), 0.0))
    return says(q, torch.where(q > 0, draft_probs.double(), 0.0))


class Gated(RowRule):
    """A rule that emits the draft's probabilities p where its gate is open, and the target's q elsewhere.

    After a rejection s = 1. What the target excludes of p is given back to tokens that the target favours. A rule that
    `draws` rejects every token where the gate is closed: h = 0, and s is infinite.
    """

    never_stricter = True
    support_only = True
    whole_draft_row = True
    temperature: float = 1.0

    def _is_open(self, q: Tensor, p: Tensor) -> Tensor:
        return self._opens(before_temperature(q, self.temperature), before_temperature(p, self.temperature))

    @abstractmethod
    def _opens(self, q: Tensor, p: Tensor) -> Tensor:
        """Return where the gate is open, ``[...]``; see `RowsFunction`."""

    def judge(self, target_probs: Tensor, draft_probs: Tensor | None, token_ids: Tensor) -> Verdict:
        """Return p(n) where the gate is open and q(n) where it is closed, 0 where the target excludes n; and s = 1."""
        q, p = probability_of(target_probs, token_ids), draft_probability_of(draft_probs, token_ids)
        opened = on_rows(self._is_open, target_probs, draft_probs, token_ids)
        opened = opened if draft_probs is None else opened.unsqueeze(-1)
        one, kept = torch.ones_like(q), torch.where(opened & (q > 0), p, 0.0 if self.draws else q)
        return Verdict(kept, torch.where(opened, one, math.inf) if self.draws else one)

    def relaxed_target(self, target_probs: Tensor, draft_probs: Tensor) -> Tensor:
        """Return h in float64."""
        opened = on_rows(self._is_open, target_probs, draft_probs, torch.empty(0)).unsqueeze(-1)
        given_back = Ensemble(weight=1.0).relaxed_target(target_probs, draft_probs)
        return torch.where(opened, given_back, target_probs.double())


BEFORE = Setting("of the request, to compare the rows from before it; 1 for those that are sampled from", gt=0, le=100)


def before_temperature(rows: Tensor, temperature: float) -> Tensor:
    """Return rows as they were before a temperature: raised to it, with the same sum. What was cut off is not known.

    >>> before_temperature(torch.tensor([0.8, 0.2]), 0.5)
    tensor([0.6667, 0.3333])
    """
    if temperature == 1:
        return rows
    raised = rows**temperature
    return raised * (
        rows.sum(-1, keepdim=True) / raised.sum(-1, keepdim=True).clamp(min=torch.finfo(raised.dtype).tiny)
    )


def lumped(q: Tensor, p: Tensor, top: int) -> tuple[Tensor, Tensor]:
    """Return both rows with all but the target's ``top`` likeliest tokens merged into one more token at the end.

    >>> lumped(torch.tensor([0.6, 0.3, 0.1]), torch.tensor([0.5, 0.25, 0.25]), 1)[1].tolist()
    [0.5, 0.0, 0.0, 0.5]
    """
    held = q >= q.topk(min(top, q.shape[-1]), dim=-1).values[..., -1:]
    q, p = (torch.cat([torch.where(held, row, 0), torch.where(held, 0, row).sum(-1, True)], -1) for row in (q, p))
    return q, p


def kl(rows: Tensor, others: Tensor) -> Tensor:
    """Return sum r log(r / o) in nats, ``[...]``; infinite where o is 0 and r is not."""
    return torch.where(rows > 0, rows * (rows.log() - others.log()), 0.0).sum(-1)


def outside(q: Tensor, p: Tensor) -> Tensor:
    """Return how much of the draft's mass the target excludes, ``[...]``."""
    return (q.sum(-1) - p.sum(-1)).clamp(min=0)


def jensen_shannon(q: Tensor, p: Tensor) -> Tensor:
    """Return the Jensen-Shannon divergence in nats, ``[...]``, at most log 2."""
    middle = (p + q) / 2
    return ((kl(q, middle) + kl(p, middle) + outside(q, p) * math.log(2)) / 2).clamp(min=0)


def total_variation(q: Tensor, p: Tensor) -> Tensor:
    return (q - p).clamp(min=0).sum(-1)
