"""The baseline: Cactus as whole-tensor PyTorch formulas that compute every row in full, whatever is accepted.

Restated from the formulas of the paper (Hao and Mou, arXiv 2604.04987): a softmax of every row, h over the whole
vocabulary for every proposal, the residual of every proposal, and a draw from each.
"""

from __future__ import annotations

import torch
from torch import Tensor


def truncate(logits: Tensor, top_k: int, top_p: float) -> Tensor:
    """Mask what top-k and top-p cut, by a sort of every row."""
    ascending, order = logits.sort(-1)
    ascending[..., : logits.shape[-1] - top_k] = -torch.inf
    dropped = ascending.softmax(-1).cumsum(-1) <= 1 - top_p
    dropped[..., -1] = False
    return torch.full_like(logits, -torch.inf).scatter_(-1, order, ascending.masked_fill_(dropped, -torch.inf))


def verify_in_full(
    logits: Tensor, draft_probs: Tensor, draft_token_ids: Tensor, delta: float, temperature: float
) -> int:
    """Verify one sequence's proposals, every row in full; return the token that follows."""
    probs = torch.softmax(logits / temperature, dim=-1)
    target, drafted = probs[:-1], draft_token_ids.unsqueeze(-1)
    q, p = target.gather(-1, drafted), draft_probs.gather(-1, drafted)
    lifted = (q + torch.sqrt(2 * delta * q * (1 - q))).clamp(max=1.0)
    relaxed = (target * ((1 - lifted) / (1 - q).clamp(min=1e-10))).scatter(-1, drafted, lifted)
    accepted = (torch.rand_like(p) * p < lifted).squeeze(-1)
    residual = (relaxed - draft_probs).clamp(min=0)
    total = residual.sum(-1, keepdim=True)
    recovered = torch.multinomial(torch.where(total > 0, residual / total, target), 1)
    bonus = torch.multinomial(probs[-1], 1)
    count = int(accepted.long().cumprod(0).sum())
    return int(bonus) if count == len(drafted) else int(recovered[count])
