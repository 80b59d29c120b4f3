"""What width is worth: how often one of several children is kept, exactly, at recorded positions."""

from __future__ import annotations

import torch
from torch import Tensor

from cactus_decoding.auditing import audit_beside
from cactus_decoding.divergences.rows import without
from cactus_decoding.types import AcceptanceRule


def chance_kept(rule: AcceptanceRule, target: Tensor, draft: Tensor, count: int, *, drawn: bool) -> Tensor:
    """Return the probability that one of some children of a node is kept by `match`, ``[rows]``.

    They are the draft's likeliest tokens, of which the last makes way for one that is drawn from what the draft's row
    holds besides, if one is drawn. A row that holds fewer tokens has fewer children.

    Args:
        rule: judges the children.
        target: q, ``[rows, vocabulary]`` in float64.
        draft: p, likewise.
        count: how many children, 1 or more.
        drawn: whether one of them is drawn.

    Example:
        >>> from cactus_decoding.rules import Lossless
        >>> q, p = torch.tensor([[0.5, 0.3, 0.2]]).double(), torch.tensor([[0.6, 0.4, 0.0]]).double()
        >>> [round(chance_kept(Lossless(), q, p, count, drawn=False).item(), 3) for count in (1, 2, 3)]
        [0.5, 0.8, 0.8]
        >>> [round(chance_kept(Lossless(), q, p, count, drawn=True).item(), 3) for count in (1, 2)]
        [0.8, 0.8]
    """
    held = (draft > 0).sum(-1).clamp(max=count - drawn)
    kept = torch.zeros(len(draft), dtype=torch.float64)
    for num_fixed in held.unique().tolist():
        rows = held == num_fixed
        kept[rows] = _kept_beside(rule, target[rows], draft[rows], num_fixed, drawn=drawn)
    return kept


def _kept_beside(rule: AcceptanceRule, target: Tensor, draft: Tensor, num_fixed: int, *, drawn: bool) -> Tensor:
    fixed = draft.topk(num_fixed, dim=-1).indices
    law = without(draft, fixed) if drawn else torch.zeros_like(draft)
    if num_fixed:  # where nothing is left to draw, the first is the one that is judged
        first = torch.zeros_like(law).scatter(-1, fixed[:, :1], 1.0)
        law = torch.where(law.sum(-1, keepdim=True) > 0, law, first)
    return audit_beside(rule, target, draft, law, fixed).acceptance
