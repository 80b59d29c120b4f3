"""A Hugging Face causal language model with a cache that can be rolled back."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal, Protocol, get_args

import torch
from torch import Tensor
from transformers import PreTrainedModel

from cactus_decoding.arguments.checks import check_choice
from cactus_decoding.models.agreement import read_if_lean
from cactus_decoding.models.lean import LeanForward
from cactus_decoding.models.transformers import GeneralForward, check_fills_cache

ForwardName = Literal["auto", "lean", "transformers"]
"""Which forward pass reads a model: see `CachedModel`."""


class Forward(Protocol):
    """Reads tokens into a cache of its own and gives logits."""

    def append(
        self, token_ids: Tensor, start: int, rows: int, positions: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """Feed tokens ``[n]`` behind those in the cache; return the last logits, ``[rows, vocabulary]``.

        By default the tokens are a chain: each sees all before it, and its position is its place in the cache.

        Args:
            token_ids: on the model's device, as are the others.
            start: how many tokens the cache holds before the call.
            rows: how many rows to return.
            positions: ``[n]``, each below ``start + n``.
            mask: ``[n, start + n]``, true where a token sees a cached or a new one, itself included.
        """
        ...

    def keep(self, length: int, prefix: int, path: list[int]) -> int:
        """Keep the first ``prefix`` of ``length`` cached tokens, and those at the later places ``path``, ascending.

        Returns:
            How many are left; 0 where some that were to be kept are lost.
        """
        ...


class CachedModel:
    """Feeds a model token by token or in blocks, and forgets what was rejected.

    Args:
        model: a decoder-only causal language model.
        forward: ``transformers`` for the model's own forward pass, `GeneralForward`; ``lean`` for `LeanForward`, which
            does less work; ``auto`` for the lean one wherever it computes what the model's own does.

    Attributes:
        model: the model.
        forward: as given.
        length: how many tokens the cache holds.

    Raises:
        ValueError: for a model whose cache cannot be rolled back (recurrent state) or that is no decoder; for an
            unknown ``forward``, and for ``lean`` where that is not the model's pass.
    """

    def __init__(self, model: PreTrainedModel, forward: ForwardName = "auto") -> None:
        check_can_roll_back(model)
        check_choice("forward", forward, get_args(ForwardName))
        self.model = model
        self.forward = forward
        self.device = model.device
        self.length = 0
        self._extra_inputs: dict[str, Any] = {}
        self._forward: Forward | None = None  # the first `append` chooses: it knows the extra inputs
        self._lean: LeanForward | None = None
        if forward == "lean":
            self._choose_forward()

    @property
    def max_length(self) -> int | None:
        """Tokens that the model's context window holds, where its configuration says."""
        return context_window(self.model)

    @property
    def extra_inputs(self) -> dict[str, Any]:
        """Further keyword arguments of each forward pass until the next `reset`, such as ``output_hidden_states``.

        They are set while the cache is empty, and call for transformers' own pass.
        """
        return self._extra_inputs

    @extra_inputs.setter
    def extra_inputs(self, extra_inputs: dict[str, Any]) -> None:
        if extra_inputs == self._extra_inputs:
            return
        if self.length:
            raise ValueError(f"extra_inputs must be set while the cache is empty, but it holds {self.length} tokens")
        self._extra_inputs, self._forward = extra_inputs, None

    @property
    def outputs(self) -> Any:
        """What the last forward pass returned, where there are ``extra_inputs``; else None."""
        return getattr(self._forward, "outputs", None)

    def reset(self) -> None:
        """Forget everything, extra inputs too."""
        self.length, self._extra_inputs, self._forward = 0, {}, None

    @torch.inference_mode()
    def append(
        self,
        token_ids: list[int] | Tensor,
        rows: int,
        positions: list[int] | Tensor | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """Feed tokens behind the cached ones; return the logits after each of the last ``rows`` of them.

        Whatever ends it early, an interruption too, leaves the cache empty.

        They are a chain, each of which sees all before it, unless positions and a mask make a tree of them:
        then each token sees itself and what leads to it.

        Args:
            token_ids: at least ``rows`` tokens, as a list or a tensor ``[n]`` on the model's device.
            rows: how many rows to return.
            positions: of each token in the text that leads to it, ``[n]``; their places in the cache, if None.
            mask: boolean, ``[n, length + n]``, true where a token sees a cached or a new one.

        Returns:
            Logits in the model's dtype, ``[rows, vocabulary]``.

        Raises:
            ValueError: for positions or a mask that do not fit, or of a model that cannot take them.
        """
        if self._forward is None:
            self._forward = self._choose_forward()
        block = torch.as_tensor(token_ids, device=self.device)
        tree = () if positions is None and mask is None else self._checked(len(block), positions, mask)
        try:
            logits = self._forward.append(block, self.length, rows, *tree)
            self.length += len(block)
        except BaseException as error:
            self._forget_after(error, tree=bool(tree))
            raise
        return logits

    def rollback(self, length: int) -> None:
        """Forget all but the first ``length`` tokens, or everything where a sliding window has lost some of those."""
        self._keep(length, [])

    @torch.inference_mode()
    def keep(self, indices: Sequence[int]) -> None:
        """Forget all tokens but those at these places of the cache, ascending: those of a path through a tree.

        The places stay as they are up to the first that is left out: ``keep(range(n))`` is ``rollback(n)``.

        Raises:
            ValueError: for places that do not ascend or hold no token, or of a model that cannot read trees.
        """
        prefix = next((i for i, place in enumerate(indices) if place != i), len(indices))
        path = list(indices[prefix:])
        if any(before >= after for before, after in pairwise([prefix - 1, *path, self.length])):
            raise ValueError(f"indices must ascend from 0 to at most {self.length - 1}, but are {list(indices)}")
        self._keep(prefix, path)

    def _keep(self, prefix: int, path: list[int]) -> None:
        try:
            self.length = 0 if self._forward is None else self._forward.keep(self.length, prefix, path)
        except BaseException as error:
            self._forget_after(error, tree=bool(path))
            raise
        if not self.length:
            self._forward = None

    def _forget_after(self, error: BaseException, *, tree: bool) -> None:
        """Empty the cache: its layers may hold different numbers of tokens. A tree is refused before anything is."""
        if not (tree and isinstance(error, ValueError)):
            self.length, self._forward = 0, None

    def _checked(
        self, count: int, positions: list[int] | Tensor | None, mask: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return positions and a mask for ``count`` tokens on the model's device."""
        end = self.length + count
        if positions is not None:
            positions = torch.as_tensor(positions)
            if positions.shape != (count,) or not bool(((positions >= 0) & (positions < end)).all()):
                raise ValueError(f"positions must be {count} numbers from 0 to {end - 1}, but are {positions.tolist()}")
            positions = positions.to(self.device)
        if mask is not None:
            if mask.shape != (count, end) or mask.dtype != torch.bool:
                raise ValueError(f"mask must be boolean, [{count}, {end}], but is {mask.dtype}, {list(mask.shape)}")
            mask = mask.to(self.device)
        return positions, mask

    def _choose_forward(self) -> Forward:
        """Return an empty forward pass; the model may have changed since the last response."""
        if self.forward == "transformers":
            return GeneralForward(self.model, self._extra_inputs)
        inputs = ", ".join(self._extra_inputs)
        weights = f"it knows no {inputs}" if inputs else read_if_lean(self.model)
        if isinstance(weights, str):
            if self.forward == "lean":
                raise ValueError(f"forward='lean' cannot read {type(self.model).__name__}: {weights}")
            return GeneralForward(self.model, self._extra_inputs)
        if self._lean is None or not self._lean.begin(weights):
            self._lean = LeanForward(weights)
        return self._lean


def check_can_roll_back(model: PreTrainedModel) -> None:
    """Raise `ValueError` for a model that cannot take part in draft-and-verify decoding."""
    name = type(model).__name__
    if getattr(model.config, "is_encoder_decoder", False):
        raise ValueError(f"{name} is an encoder-decoder model; allowed are decoder-only causal language models")
    if getattr(model, "_is_stateful", False):
        raise ValueError(f"{name} keeps a recurrent state, which cannot be rolled back after a rejection")
    if not model._supports_default_dynamic_cache():
        raise ValueError(f"{name} keeps a memory of its own and no cache that could be rolled back after a rejection")
    if getattr(model.config.get_text_config(decoder=True), "cross_attention_layers", None):
        raise ValueError(f"{name} has cross-attention layers, which read images and have no place in a cache of tokens")
    check_fills_cache(model)


def context_window(model: PreTrainedModel) -> int | None:
    """Return how many tokens a model's positions reach, or None where its configuration does not say."""
    window = getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None)
    return window if isinstance(window, int) else None


def check_fits(role: str, window: int | None, prompt_length: int, num_speculative_tokens: int) -> None:
    """Raise `ValueError` where a context window has no room for a prompt, the proposals of a step, and a next token."""
    if window is None:
        return
    if num_speculative_tokens >= window:
        raise ValueError(
            f"num_speculative_tokens must be below the {role}'s {window} positions, but is {num_speculative_tokens}"
        )
    if prompt_length >= window:
        raise ValueError(
            f"the prompt must be shorter than the {role}'s {window} positions, but has {prompt_length} tokens"
        )


def vocabulary_size(model: PreTrainedModel) -> int:
    """Return the width of a model's logits."""
    return int(model.config.get_text_config(decoder=True).vocab_size)
