"""Block verification by its own formulas, on whole chains at once: what `joint` on a chain must equal."""

from __future__ import annotations

import torch
from torch import Tensor


def prefix_tests(rows: Tensor, draft_probs: Tensor, token_ids: Tensor, used: Tensor) -> tuple[Tensor, Tensor]:
    """Return the weight w_i of each prefix, ``[batch, k + 1]``, and the probability that it passes, ``[batch, k]``.

    Args:
        rows: the relaxed target h, ``[batch, k, vocabulary]``.
        draft_probs: the draft's rows likewise.
        token_ids: drafted tokens, ``[batch, k]``.
        used: how many of the k columns each sequence uses, ``[batch]``.
    """
    batch, width = token_ids.shape
    weights, passes = rows.new_ones(batch, width + 1), rows.new_zeros(batch, width)
    for i in range(width):
        token = token_ids[:, i : i + 1]
        h, p = rows[:, i].gather(1, token).squeeze(1), draft_probs[:, i].gather(1, token).squeeze(1)
        # a token of draft probability zero is never drafted; the guard only keeps NaN away
        weight = torch.where(p > 0, weights[:, i] * h / p, 0.0).clamp(max=1.0)
        weights[:, i + 1] = passes[:, i] = weight
        if i + 1 < width:
            left = (weight.unsqueeze(1) * rows[:, i + 1] - draft_probs[:, i + 1]).clamp(min=0).sum(1)
            # weight 1 passes even where h = p leaves no residual
            inner = torch.where(weight < 1, left / (left + 1 - weight), 1.0)
            passes[:, i] = torch.where(used == i + 1, weight, inner)
    return weights, passes
