"""How far a model's positions reach inside `generate`, which looks at no context window."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from transformers import PreTrainedModel

from cactus_decoding.core.types import Drafter, DraftLength, LogitsToProbs, Proposal
from cactus_decoding.engines.transformers.cached_model import context_window


class PositionLimit(NamedTuple):
    """How far a response may go."""

    end: int | None  # tokens that the sequence may have, or None where it may go on, as rotations and linear biases do
    cause: str = ""  # why it ends there


def position_limit(model: PreTrainedModel, prompt_length: int | None = None) -> PositionLimit:
    """Return how far a model goes: where `generate` itself goes on beyond the context window, there is no end.

    A table of positions has an end, and `generate` fails there. A model that changes its rotations once, and whose
    `generate` then reads the whole text again (Phi-3 and its relatives), is not read across that place.
    """
    text = model.config.get_text_config(decoder=True)
    change = _rotations_change_at(text, "longrope")
    # set on the configuration itself, it makes their `prepare_inputs_for_generation` drop the cache
    own = getattr(text, "original_max_position_embeddings", None)
    rereads = own == change and "phi" in str(text.model_type)
    if change is not None and rereads and prompt_length is not None and prompt_length <= change:
        return PositionLimit(change, "where its rotations change and all that was read would have to be read again")
    rotates = any(name.endswith("inv_freq") for name, _ in model.named_buffers())
    if rotates or getattr(text, "alibi", False):
        return PositionLimit(None)
    end = context_window(model) or getattr(text, "max_seq_len", None)  # MPT's table of biases
    return PositionLimit(end, "which is all that its table of positions holds")


def read_in_blocks(model: PreTrainedModel, drafter: Drafter, prompt_length: int) -> Drafter:
    """Return a drafter that proposes nothing where reading several tokens at once would not be what `generate` reads.

    Dynamic rotations depend on the length of the text when a token is read: beyond the window, tokens are read singly.
    Where a prompt's tokens see each other in both directions (PaliGemma), proposals are kept from being seen with it.
    """
    text = model.config.get_text_config(decoder=True)
    if getattr(text, "use_bidirectional_attention", None) in (True, "all"):
        drafter = _BlocksWithin(drafter, prompt_length, beyond=True)
    dynamic, change = _rotations_change_at(text, "dynamic"), _rotations_change_at(text, "longrope")
    if dynamic is not None:
        return _BlocksWithin(drafter, dynamic, beyond=False)
    return drafter if change is None else _BlocksWithin(drafter, change, beyond=True)


def _rotations_change_at(text: Any, kind: str) -> int | None:
    """Return after how many tokens rotations of a kind change, or None for a model that has none of these."""
    given = getattr(text, "rope_parameters", None) or {}
    for one in (given, *(value for value in given.values() if isinstance(value, dict))):  # perhaps by kinds of layers
        if kind in str(one.get("rope_type")):
            own = one.get("original_max_position_embeddings")
            window = text.max_position_embeddings
            return int(own if kind == "longrope" and own is not None else window)
    return None


class _BlocksWithin(Drafter):
    """Proposes no block that reaches across a place; after it, as many as ever or nothing."""

    def __init__(self, drafter: Drafter, place: int, *, beyond: bool) -> None:
        self._drafter, self._place, self._beyond = drafter, place, beyond
        self.max_length = drafter.max_length
        for name in ("fixed_blocks", "grows_trees", "may_be_left_out"):  # what may be asked of it is the drafter's
            vars(self)[name] = getattr(drafter, name)

    def begin_response(self, target: Any, length: DraftLength) -> None:
        self._drafter.begin_response(target, length)

    def propose(
        self, token_ids: list[int], limit: int, to_probs: LogitsToProbs, generator: torch.Generator | None
    ) -> Proposal:
        if len(token_ids) <= self._place or not self._beyond:
            limit = min(limit, self._place - len(token_ids))
        if limit <= 0:
            return Proposal([], None)
        return self._drafter.propose(token_ids, limit, to_probs, generator)
