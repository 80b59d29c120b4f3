"""A model's head without some of the vocabulary."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

if TYPE_CHECKING:
    from transformers import PreTrainedModel

CONFIGURED = "draft_vocabulary"
"""The name under which a draft's configuration lists the tokens that it proposes, in ascending order."""


class PartialHead(nn.Linear):
    """A layer with all of its weights, of which some rows are computed; the logits of the others are minus infinity."""

    token_ids: Tensor
    _copied: tuple[int, int, Tensor] | None = None
    _widens = True

    def forward(self, hidden: Tensor) -> Tensor:
        """Return logits, ``[..., vocabulary]``; of the part alone inside `alone`."""
        logits = linear(hidden, self._rows(), None if self.bias is None else self.bias[self.token_ids])
        if not self._widens:
            return logits
        wide = logits.new_full((*logits.shape[:-1], self.out_features), -torch.inf)
        return wide.index_copy_(-1, self.token_ids, logits)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Compute the part alone, ``[..., part]``: a training step has no memory for rows of zeros."""
        self._widens = False
        try:
            yield
        finally:
            self._widens = True

    def places(self, token_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return where tokens are in the part, 0 for those that it lacks, and which it has."""
        places = torch.searchsorted(self.token_ids, token_ids).clamp(max=len(self.token_ids) - 1)
        kept = self.token_ids[places] == token_ids
        return places.where(kept, 0), kept

    def _rows(self) -> Tensor:
        """Return the weights' rows; copied once where no gradient flows, until the weights change."""
        if torch.is_grad_enabled():
            self._copied = None
            return self.weight[self.token_ids]
        state = self.weight.data_ptr(), self.weight._version
        if self._copied is None or self._copied[:2] != state:
            self._copied = (*state, self.weight[self.token_ids])
        return self._copied[2]


def propose_from(model: PreTrainedModel, token_ids: Sequence[int]) -> None:
    r"""Have a model propose from a part of its vocabulary alone, and its configuration say so.

    .. math:: p'(x) = p(x) / \sum_{i \in part} p(i) \text{ in the part}, \quad 0 \text{ elsewhere}
    """
    head = model.get_output_embeddings()
    if type(head) not in (nn.Linear, PartialHead):
        raise ValueError(f"{type(model).__name__} has no plain output layer, of which a part could be computed")
    assert isinstance(head, nn.Linear)
    ids = sorted(set(token_ids))
    if not ids or ids[0] < 0 or ids[-1] >= head.out_features:
        raise ValueError(
            f"{CONFIGURED} must list tokens from 0 to {head.out_features - 1}, but lists {ids[-1] if ids else 'none'}"
        )
    head.__class__ = PartialHead
    head.register_buffer("token_ids", torch.tensor(ids, device=head.weight.device), persistent=False)
    setattr(model.config, CONFIGURED, ids)
