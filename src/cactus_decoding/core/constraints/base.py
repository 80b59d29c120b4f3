"""What restricts the tokens of a response, and how it reaches the probabilities that tokens are drawn from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from cactus_decoding.core.sampling.params import RowSampling


class ConstraintError(ValueError):
    """A constraint that cannot go on: the model has no fitting token, or working out what fits takes too long."""


class Constraint(Protocol):
    """What the tokens of one response may be.

    ``token_ids`` are always the response's own tokens, without the prompt. Proposals are asked about too, also those
    that are rejected, so every method is a function of its arguments, whatever was asked before.
    """

    def allowed(self, token_ids: Sequence[int]) -> Tensor | None:
        """Return which tokens may come next, ``[vocabulary]`` as booleans.

        None where one of ``token_ids`` is not allowed itself, or ends the response: nothing is ever drawn after it.
        """

    def forced(self, token_ids: Sequence[int], limit: int) -> list[int]:
        """Return up to ``limit`` tokens that must come next: each is the only one that is allowed there."""

    def may_end(self, token_ids: Sequence[int]) -> bool: ...


class ConstrainedSampling:
    """Sampling in which tokens that a constraint does not allow have probability zero; see `RowSampling`.

    The logits of these tokens become minus infinity before anything else: before temperature, top-k, top-p and min-p.
    The response therefore follows the masked target, and every rule, budget and tree works as for any other target.
    A mask after top-p would be another distribution, and may leave no token at all.
    """

    plain = None

    def __init__(self, sampling: RowSampling, constraint: Constraint, prompt_length: int) -> None:
        self._sampling, self._constraint, self._prompt_length = sampling, constraint, prompt_length

    def __call__(self, logits: Tensor, token_ids: list[int]) -> Tensor:
        """Return probabilities, ``[rows, vocabulary]``; the last row follows all the tokens."""
        return self._sampling(self._masked(logits, token_ids), token_ids)

    def untempered(self, logits: Tensor, token_ids: list[int]) -> Tensor:
        """Return the masked rows before temperature and cuts."""
        return self._sampling.untempered(self._masked(logits, token_ids), token_ids)

    def forced(self, token_ids: list[int], limit: int) -> list[int]:
        """Return up to ``limit`` tokens that must follow all the tokens, whatever the logits are."""
        return self._constraint.forced(token_ids[self._prompt_length :], limit) if limit > 0 else []

    def _masked(self, logits: Tensor, token_ids: list[int]) -> Tensor:
        first = len(token_ids) - len(logits) + 1
        rows = []
        for i, row in enumerate(logits):
            allowed = self._constraint.allowed(token_ids[self._prompt_length : first + i])
            rows.append(row if allowed is None else row.masked_fill(~allowed.to(row.device), -math.inf))
        return torch.stack(rows)
