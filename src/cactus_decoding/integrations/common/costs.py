"""What a position costs, in nats: given the drafted token, and averaged over it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cactus_decoding.auditing import audit
from cactus_decoding.integrations.common.relaxed_logits import RelaxedLogits
from cactus_decoding.rules.base import Rule


@dataclass(frozen=True, eq=False)
class PositionCosts:
    """What some positions cost if they are relaxed; float64, ``[positions]`` each.

    Attributes:
        conditional: KL(h || q) for the h of the drafted token, exact.
        emitted: KL of what is emitted to q, averaged over the drafted token; infinite where nobody audited.
        lossless_acceptance, acceptance: probability of accepting the drafted token, without and with the rule.
    """

    conditional: Tensor
    emitted: Tensor
    lossless_acceptance: Tensor
    acceptance: Tensor

    @property
    def relaxed(self) -> Tensor:
        """Probability that the lossless test rejects what was accepted, with the same uniform number."""
        return (1 - self.lossless_acceptance / self.acceptance.clamp(min=1e-300)).clamp(0, 1)


def costs_of(
    relaxed: RelaxedLogits, draft_token_probs: Tensor | None, audited: tuple[Tensor, Tensor] | None
) -> PositionCosts:
    """Return what some positions cost.

    Args:
        relaxed: what the rule makes of them.
        draft_token_probs: p(n) of the drafted tokens, ``[positions]``; None for a deterministic draft.
        audited: indices of positions and their `audited_nats`. Nobody need audit where the draft is deterministic or h
            is the same for every drafted token: what is emitted then costs what h does.

    Example:
        >>> from cactus_decoding import Cactus
        >>> from cactus_decoding.integrations.common.relaxed_logits import relax_tokens
        >>> half = relax_tokens(Cactus(delta=0.02), torch.tensor([0.0]), torch.tensor([2.0]).log())
        >>> costs_of(half, None, None).acceptance
        tensor([0.6000], dtype=torch.float64)
    """
    acceptances = [relaxed.target_prob, relaxed.relaxed_prob]
    emitted = relaxed.conditional
    if (p := draft_token_probs) is not None:
        acceptances = [torch.where(p > 0, (x / p).clamp(max=1.0), 0.0) for x in acceptances]
        if relaxed.logits.dim() == 1:  # h depends on the drafted token
            emitted = torch.full_like(emitted, torch.inf)
            if audited is not None:
                emitted[audited[0]] = audited[1]
    return PositionCosts(relaxed.conditional, emitted, *acceptances)


def audited_nats(rule: Rule, target_logits: Tensor, draft_probs: Tensor) -> Tensor:
    """Return the KL of what is emitted to the target, ``[rows]``.

    It is infinite where rows are no distributions, which must not end an engine's worker.

    Example:
        >>> from cactus_decoding import Lossless
        >>> audited_nats(Lossless(), torch.zeros(1, 2), torch.tensor([[0.75, 0.25]]))
        tensor([0.], dtype=torch.float64)
        >>> audited_nats(Lossless(), torch.zeros(1, 2), torch.tensor([[0.75, torch.nan]]))
        tensor([inf], dtype=torch.float64)
    """
    draft_probs = draft_probs.double()
    try:
        kl = audit(rule, target_logits.double().softmax(-1), draft_probs / draft_probs.sum(-1, keepdim=True)).kl
    except ValueError:
        return torch.full(target_logits.shape[:1], torch.inf, dtype=torch.float64, device=target_logits.device)
    return kl.clamp(min=0)
