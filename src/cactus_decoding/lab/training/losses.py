"""The losses that a draft is trained by, of the probabilities of both models along texts."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from cactus_decoding.core.checks import short_repr
from cactus_decoding.core.declared import Setting, check_fields
from cactus_decoding.core.spelling import parse, spell
from cactus_decoding.lab.evaluation.score import expected_kept


@dataclass(frozen=True, eq=False)
class Rows:
    """Both models' probabilities at the counted positions of some texts, at temperature 1.

    An outcome is a token, or, where only the target's likeliest are known, one of these or any other (see `coarse`).

    Logarithms of q and p are ``[positions, outcomes]`` and finite; gradients flow through those of p.
    ``token_log_probs`` are p's for the tokens of the texts, ``[positions]``, and ``mask`` marks the counted positions
    of the texts, in order, ``[texts, length]``.
    """

    target_log_probs: Tensor
    draft_log_probs: Tensor
    token_log_probs: Tensor
    mask: Tensor

    @classmethod
    def of(cls, target_logits: Tensor, draft_logits: Tensor, token_ids: Tensor, mask: Tensor | None = None) -> Rows:
        """Make rows from logits, ``[texts, length, vocabulary]``; logarithms of q will do too.

        Where models pad their vocabularies differently, tokens that only one of them has are left out. ``token_ids``
        are the texts' tokens at these positions, and ``mask`` marks the counted ones, all if None: ``[texts, length]``.
        """
        if mask is None:
            mask = torch.ones_like(token_ids, dtype=torch.bool)
        common = min(target_logits.shape[-1], draft_logits.shape[-1])
        target, draft = (log_rows(logits[..., :common][mask]) for logits in (target_logits, draft_logits))
        return cls(target, draft, chosen(draft, token_ids[mask]), mask)

    @property
    def target_probs(self) -> Tensor:
        return self.target_log_probs.exp()

    @property
    def draft_probs(self) -> Tensor:
        return self.draft_log_probs.exp()

    @property
    def acceptance(self) -> Tensor:
        return torch.minimum(self.draft_probs, self.target_probs).sum(-1)

    @property
    def kl(self) -> Tensor:
        """KL(q || p) in nats, ``[positions]``, over tokens that the draft has."""
        gaps = torch.where(has(self.draft_log_probs), self.target_log_probs - self.draft_log_probs, 0.0)
        return (self.target_probs * gaps).sum(-1)


def log_rows(logits: Tensor) -> Tensor:
    """Return log-probabilities at temperature 1, finite, in float32 or, if the logits are, float64."""
    logs = functional.log_softmax(logits, -1, dtype=torch.promote_types(logits.dtype, torch.float32))
    return logs.clamp(min=torch.finfo(logs.dtype).min / 4)


def has(log_probs: Tensor) -> Tensor:
    """Where tokens are not impossible, such as those that a draft's part of the vocabulary lacks."""
    return log_probs > torch.finfo(log_probs.dtype).min / 8


def chosen(log_probs: Tensor, token_ids: Tensor) -> Tensor:
    return log_probs.gather(-1, token_ids.unsqueeze(-1)).squeeze(-1)


def windows(acceptance: Tensor, mask: Tensor, num_speculative_tokens: int) -> Tensor:
    r"""Return how many proposals a step that begins at each position is expected to keep, ``[positions]``.

    .. math:: \sum_{k=1}^{K} \prod_{i=1}^{k} \alpha_{t+i-1}

    along the text as it stands; after its end nothing is kept. The proposals of a real step condition on one another
    and not on the text, so this is an estimate. ``acceptance`` is :math:`\alpha` of the counted positions,
    ``[positions]``, where ``mask``, ``[texts, length]``, is true.
    """
    laid_out = torch.zeros(mask.shape, dtype=acceptance.dtype, device=acceptance.device)
    laid_out = laid_out.masked_scatter(mask, acceptance)
    padded = functional.pad(laid_out, (0, num_speculative_tokens - 1))
    return expected_kept(padded.unfold(-1, num_speculative_tokens, 1))[..., -1][mask]


class Loss(ABC):
    """Base of the losses: frozen dataclasses whose fields are their parameters, annotated with `Setting`."""

    name: ClassVar[str]
    reads_target: ClassVar[bool] = True  # if not, training saves the target's passes

    def __post_init__(self) -> None:
        check_fields(self)

    @abstractmethod
    def __call__(self, rows: Rows) -> Tensor:
        """Return the loss at each position, ``[positions]``; training minimises its mean."""

    def __str__(self) -> str:
        return spell(self.name, self)


@dataclass(frozen=True)
class CrossEntropy(Loss):
    """-log p(x) of the text's token x, in nats, where the draft has it; the target plays no part."""

    name = "cross_entropy"
    reads_target = False

    def __call__(self, rows: Rows) -> Tensor:
        return torch.where(has(rows.token_log_probs), -rows.token_log_probs, 0.0)


@dataclass(frozen=True)
class Kl(Loss):
    """KL(q || p) = sum q log(q / p), in nats.

    Source: Zhou et al., DistillSpec, arXiv 2310.08461.
    """

    name = "kl"

    def __call__(self, rows: Rows) -> Tensor:
        return rows.kl


@dataclass(frozen=True)
class ReverseKl(Loss):
    """KL(p || q) = sum p log(p / q), in nats.

    Source: Zhou et al., DistillSpec, arXiv 2310.08461.
    """

    name = "reverse_kl"

    def __call__(self, rows: Rows) -> Tensor:
        return (rows.draft_probs * (rows.draft_log_probs - rows.target_log_probs)).sum(-1)


@dataclass(frozen=True)
class TotalVariation(Loss):
    """1 - alpha with alpha = sum min(p, q): the probability that lossless verification rejects.

    Source: Leviathan et al., arXiv 2211.17192; as a loss, Zhou et al., DistillSpec, arXiv 2310.08461.
    """

    name = "total_variation"

    def __call__(self, rows: Rows) -> Tensor:
        return 1 - rows.acceptance


@dataclass(frozen=True)
class LogAcceptance(Loss):
    """-log alpha with alpha = sum min(p, q); summed over positions, -log of the chance that all are accepted.

    Source: LK losses, arXiv 2602.23881.
    """

    name = "log_acceptance"

    def __call__(self, rows: Rows) -> Tensor:
        return -rows.acceptance.clamp(min=1e-30).log()


@dataclass(frozen=True)
class Lk(Loss):
    r"""A mixture that each position weighs by its own acceptance, through which no gradient flows:

    .. math:: \lambda KL(q \| p) + (1 - \lambda)(1 - \alpha), \quad \lambda = e^{-\eta\,\alpha}

    Source: LK losses, arXiv 2602.23881.

    With ``eta`` 0 it is KL alone.
    """  # noqa: D415 - the sentence ends in its formula

    eta: Annotated[float, Setting("how fast the weight moves from KL to acceptance", ge=0, lt=math.inf)] = 3.0

    name = "lk"

    def __call__(self, rows: Rows) -> Tensor:
        acceptance = rows.acceptance
        weight = (-self.eta * acceptance.detach()).exp()
        return weight * rows.kl + (1 - weight) * (1 - acceptance)


@dataclass(frozen=True)
class Block(Loss):
    r"""The share of a step's K proposals that are lost, for a step that begins at each position.

    .. math:: 1 - \frac{1}{K} \sum_{k=1}^{K} \prod_{i=1}^{k} \alpha_{t+i-1}

    The expected tokens of such a step are 1 plus that sum; K = 1 is `TotalVariation`. A rejection counts for all that
    would have come after it, and proposals after the end of a text are lost whatever the draft does.

    Source: the expected length of a step, Leviathan et al., arXiv 2211.17192, with an acceptance for each position.
    """

    num_speculative_tokens: Annotated[int, Setting("proposals per step", ge=1)] = 6

    name = "block"

    def __call__(self, rows: Rows) -> Tensor:
        kept = windows(rows.acceptance, rows.mask, self.num_speculative_tokens)
        return 1 - kept / self.num_speculative_tokens


LOSSES: dict[str, type[Loss]] = {
    "cross_entropy": CrossEntropy,
    "kl": Kl,
    "reverse_kl": ReverseKl,
    "total_variation": TotalVariation,
    "log_acceptance": LogAcceptance,
    "lk": Lk,
    "block": Block,
}


def parse_loss(text: str) -> Loss:
    """Parse a loss's spelling: a name, then ``:`` and comma-separated ``parameter=value`` pairs."""
    if not isinstance(text, str):
        raise TypeError(f"a loss's spelling must be a string such as 'lk', but is {short_repr(text)}")
    return parse("loss", text, LOSSES)
