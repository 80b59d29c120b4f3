"""What the loop and drafters need of a model, whatever computes it: tokens in, logits out, rejected ones forgotten."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Protocol, Self

import torch
from torch import Tensor


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


class BaseCachedModel(ABC):
    """Feeds a model token by token or in blocks, and forgets what was rejected.

    Attributes:
        model: what computes, whose weights several caches may share.
        device: of the tokens that are fed and of the logits that come back.
        length: how many tokens the cache holds.
        threads: of the CPU, where the model has a number of its own.
    """

    model: Any
    device: torch.device
    threads: int | None = None

    def __init__(self) -> None:
        self.length = 0
        self._forward: Forward | None = None  # the first `append` chooses

    @property
    def on_cpu(self) -> bool:
        """Whether all of it is computed on the CPU."""
        return self.device.type == "cpu"

    @property
    @abstractmethod
    def name(self) -> str:
        """The path or the name of the model."""

    @property
    @abstractmethod
    def vocabulary_size(self) -> int:
        """The width of the logits."""

    @property
    @abstractmethod
    def max_length(self) -> int | None:
        """Tokens that the model's context window holds, where that is known."""

    @property
    @abstractmethod
    def stop_token_ids(self) -> list[int] | None:
        """Tokens that end a response, where the model itself names them."""

    @abstractmethod
    def twin(self) -> Self:
        """Return the same weights with a cache of its own."""

    @abstractmethod
    def _choose_forward(self) -> Forward:
        """Return an empty forward pass."""

    def reset(self) -> None:
        """Forget everything."""
        self.length, self._forward = 0, None

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
