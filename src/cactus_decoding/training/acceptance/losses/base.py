"""What losses share: both models' rows along texts, and what a loss is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from cactus_decoding.arguments.knobs import check_knobs
from cactus_decoding.arguments.spelling import spell
from cactus_decoding.evaluation.expected import expected_kept


@dataclass(frozen=True, eq=False)
class Rows:
    """Both models' rows at the counted positions of some texts, at temperature 1.

    An outcome is a token, or, where only the target's likeliest are known, one of these or any other (see `coarse`).

    Attributes:
        target_log_probs: log q, ``[positions, outcomes]``, finite.
        draft_log_probs: log p, of the same shape, with what autograd knows of it.
        token_log_probs: log p of the tokens that the texts have there, ``[positions]``.
        mask: which positions of the texts these are, in order, ``[texts, length]``.

    Example:
        >>> rows = Rows.of(torch.zeros(1, 3, 2), torch.zeros(1, 3, 2), torch.tensor([[0, 1, 1]]))
        >>> rows.acceptance
        tensor([1., 1., 1.])
    """

    target_log_probs: Tensor
    draft_log_probs: Tensor
    token_log_probs: Tensor
    mask: Tensor

    @classmethod
    def of(cls, target_logits: Tensor, draft_logits: Tensor, token_ids: Tensor, mask: Tensor | None = None) -> Rows:
        """Return the rows of logits.

        Where models pad their vocabularies differently, tokens that only one of them has are left out.

        Args:
            target_logits: ``[texts, length, vocabulary]``; logarithms of q will do too.
            draft_logits: the same of the draft.
            token_ids: what the texts have at these positions, ``[texts, length]``.
            mask: which positions count, ``[texts, length]``; all, if None.
        """
        if mask is None:
            mask = torch.ones_like(token_ids, dtype=torch.bool)
        common = min(target_logits.shape[-1], draft_logits.shape[-1])
        target, draft = (log_rows(logits[..., :common][mask]) for logits in (target_logits, draft_logits))
        return cls(target, draft, chosen(draft, token_ids[mask]), mask)

    @property
    def target_probs(self) -> Tensor:
        """The target's probabilities, q."""
        return self.target_log_probs.exp()

    @property
    def draft_probs(self) -> Tensor:
        """The draft's probabilities, p."""
        return self.draft_log_probs.exp()

    @property
    def acceptance(self) -> Tensor:
        """What lossless verification accepts at each position, sum min(p, q), ``[positions]``."""
        return torch.minimum(self.draft_probs, self.target_probs).sum(-1)

    @property
    def kl(self) -> Tensor:
        """KL(q || p) in nats, ``[positions]``."""
        return (self.target_probs * (self.target_log_probs - self.draft_log_probs)).sum(-1)


def log_rows(logits: Tensor) -> Tensor:
    """Return logarithms of rows at temperature 1, finite, in float32 or, where the logits are, float64."""
    logs = log_softmax(logits, -1, dtype=torch.promote_types(logits.dtype, torch.float32))
    return logs.clamp(min=torch.finfo(logs.dtype).min / 4)


def chosen(log_probs: Tensor, token_ids: Tensor) -> Tensor:
    """Return what rows ``[positions, vocabulary]`` give the tokens ``[positions]``."""
    return log_probs.gather(-1, token_ids.unsqueeze(-1)).squeeze(-1)


def windows(acceptance: Tensor, mask: Tensor, num_speculative_tokens: int) -> Tensor:
    r"""Return how many proposals a step that begins at each position is expected to keep, ``[positions]``.

    .. math:: \sum_{k=1}^{K} \prod_{i=1}^{k} \alpha_{t+i-1}

    along the text as it stands; after its end nothing is kept. The proposals of a real step condition on one another
    and not on the text, so that this is an estimate.

    Args:
        acceptance: :math:`\alpha` of each counted position, ``[positions]``.
        mask: where they stand, ``[texts, length]``.
        num_speculative_tokens: K.

    Example:
        >>> windows(torch.tensor([0.5, 0.5]), torch.tensor([[True, True, False]]), 2)
        tensor([0.7500, 0.5000])
    """
    laid_out = torch.zeros(mask.shape, dtype=acceptance.dtype, device=acceptance.device)
    laid_out = laid_out.masked_scatter(mask, acceptance)
    padded = torch.nn.functional.pad(laid_out, (0, num_speculative_tokens - 1))
    return expected_kept(padded.unfold(-1, num_speculative_tokens, 1))[..., -1][mask]


class Loss(ABC):
    """Base of the losses: frozen dataclasses whose fields are their parameters, each a `Knob`.

    Attributes:
        name: in the registry.
    """

    name: ClassVar[str]

    def __post_init__(self) -> None:
        """Check the parameters."""
        check_knobs(self)

    @abstractmethod
    def __call__(self, rows: Rows) -> Tensor:
        """Return the loss at each position, ``[positions]``; what is minimised is its mean."""

    def acceptance(self, rows: Rows) -> Tensor:
        """Return what is accepted at each position by the verification that the loss trains for, ``[positions]``."""
        return rows.acceptance

    def __str__(self) -> str:
        """Return the spelling, which `parse_loss` takes."""
        return spell(self.name, self)
