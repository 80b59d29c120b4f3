"""What the loop and drafters need of a model, whatever computes it: tokens in, logits out, rejected ones forgotten."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, pairwise, takewhile
from typing import Any, Protocol, Self

import torch
from torch import Tensor

from cactus_decoding.core.checks import PromptTooLongError
from cactus_decoding.core.types import Proposal

_ORDER = count()


class Cancelled(Exception):
    """Somebody else ended the response."""


@dataclass(frozen=True)
class SavedText:
    """A copy of a cache: its tokens, and its state as `Forward.save` returned it."""

    token_ids: list[int]
    state: Any
    saved: int = field(default_factory=lambda: next(_ORDER))


class SavedRoom:
    def __init__(self, max_bytes: int, caches: Sequence[BaseCachedModel]) -> None:
        self._max_bytes, self._caches = max_bytes, caches

    def trim(self) -> None:
        """Forget the least recently used copies until the others fit."""
        copies = [(each.saved, num_bytes(each.state)) for cache in self._caches for each in cache.saved]
        left = sum(size for _, size in copies)
        for oldest, size in sorted(copies):
            if left <= self._max_bytes:
                return
            left -= size
            for cache in self._caches:
                cache.saved = [each for each in cache.saved if each.saved != oldest]


def num_bytes(state: Any) -> int:
    if hasattr(state, "nbytes"):
        return int(state.nbytes)
    if isinstance(state, Mapping):
        return sum(map(num_bytes, state.values()))
    if isinstance(state, (list, tuple)):
        return sum(map(num_bytes, state))
    # transformers' caches, and their layers
    known = any(kind.__module__ == "transformers.cache_utils" for kind in type(state).__mro__)
    return num_bytes(vars(state)) if known else 0


class Forward(Protocol):
    """Reads tokens into its own cache and returns logits."""

    def append(
        self, token_ids: Tensor, start: int, rows: int, positions: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """Feed tokens ``[n]`` after those in the cache; return the last ``rows`` logits, ``[rows, vocabulary]``.

        By default the tokens are a chain: each sees all before it, and its position is its place in the cache. The
        cache holds ``start`` tokens before the call. ``positions`` are ``[n]``, each below ``start + n``; ``mask`` is
        ``[n, start + n]``, true where a token sees a cached or a new one, itself included.
        """

    def keep(self, length: int, prefix: int, path: list[int]) -> int:
        """Keep the first ``prefix`` of ``length`` cached tokens, and those at the later places ``path``, ascending.

        Return how many are left: fewer where some of the prefix are lost, 0 where all are.
        """

    def save(self, length: int) -> Any: ...

    def restore(self, saved: Any) -> None: ...


class BaseCachedModel(ABC):
    """Feeds a model token by token or in blocks, and forgets what was rejected.

    Several caches may share the weights of one ``model``; ``threads`` is set where it has its own number. ``saved``
    holds up to ``max_saved`` copies of the cache, within ``room``, the one that was used last as the last. A draft
    whose vocabulary differs from the target's reads the token ``read_as[t]`` where a text has the target's token t.
    ``sample_text`` returns the tokens of a text of the kind that the model reads, on which its passes are timed.
    ``num_reused`` counts the tokens of the last response's prompt that were in the cache already.
    """

    model: Any
    device: torch.device
    threads: int | None = None
    max_saved: int = 0
    room: SavedRoom | None = None
    num_reused: int = 0
    read_as: Tensor | None = None
    sample_text: Callable[[], list[int]] | None = None
    _cancelled: threading.Event | None = None

    def __init__(self) -> None:
        self.saved: list[SavedText] = []
        # in the cache's order; those of a tree stand as their complements, which no text has, until `keep` takes a path
        self._token_ids: list[int] = []
        self._forward: Forward | None = None  # the first `append` chooses

    @property
    def length(self) -> int:
        return len(self._token_ids)

    @property
    def on_cpu(self) -> bool:
        return self.device.type == "cpu"

    def use_threads(self, count: int) -> None:
        """Compute with so many threads of the CPU from now on; models of PyTorch share one number."""
        torch.set_num_threads(count)

    def cancel_by(self, event: threading.Event | None) -> None:
        """Let another thread end a response: where the event is set, what is read next raises `Cancelled`."""
        self._cancelled = event

    def check_reads_trees(self) -> None:
        """Raise `ValueError` for a kind of model that can only read chains; others raise when they read a tree."""
        return None

    @property
    def max_leaves(self) -> int | None:
        """Leaves of a tree that can be read at once, where nothing of it is kept: 1 for chains only, None for any."""
        try:
            self.check_reads_trees()
        except ValueError:
            return 1
        return None

    @property
    def clock(self) -> Callable[[], float]:
        """What its passes are timed with: with one thread its own time, which other programs do not change."""
        threads = torch.get_num_threads() if self.threads is None else self.threads
        exact = time.get_clock_info("thread_time").resolution < 1e-5  # not on Windows
        return time.thread_time if exact and self.on_cpu and threads == 1 else time.perf_counter

    @property
    def build(self) -> str:
        """Which kernels compute it, as far as the engine says: its times are those of a build."""
        return str(torch.backends.cpu.get_cpu_capability()) if self.on_cpu else ""

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
        """Tokens that the model's context window holds, if known."""

    @property
    @abstractmethod
    def stop_token_ids(self) -> list[int] | None:
        """Tokens that end a response, if the model itself names them."""

    @abstractmethod
    def twin(self) -> Self:
        """Return the same weights with their own cache."""

    @abstractmethod
    def _choose_forward(self) -> Forward:
        """Return an empty forward pass."""

    def reset(self) -> None:
        """Forget everything, saved texts too."""
        self.saved = []
        self._clear()

    def _clear(self) -> None:
        self._token_ids, self._forward = [], None

    def forget_if_changed(self) -> None:
        """Forget everything if the model would read it differently by now; each response begins with this."""
        return None

    def recall(self, text: list[int]) -> None:
        """Swap the cache for a saved text that shares more with this one; save the old one if most of it would be lost.

        An interruption may lose either; what ``length`` says stays true.
        """
        shared, found = num_shared(self._token_ids, text), None
        if self.saved:
            found = max(self.saved, key=lambda each: num_shared(each.token_ids, text))
            if num_shared(found.token_ids, text) <= shared:
                found = None
        self._set_aside(shared, found)
        if found is None:
            return
        self._clear()
        self._forward = self._choose_forward()
        self._forward.restore(found.state)
        self._token_ids = found.token_ids

    def _set_aside(self, shared: int, taken: SavedText | None = None) -> None:
        """Save the cached text if most of it would be lost by keeping what is shared, in the place of a saved one."""
        saved = [each for each in self.saved if each is not taken]
        chain = [*takewhile(lambda token: token >= 0, self._token_ids)]
        if len(chain) > 2 * shared and self.max_saved and self._forward is not None:
            self.rollback(len(chain))
            if self.length:
                saved.append(SavedText([*self._token_ids], self._forward.save(self.length)))
        self.saved = saved[max(len(saved) - self.max_saved, 0) :]
        if self.room is not None:
            self.room.trim()

    def num_kept(self, text: list[int]) -> int:
        """Return how many tokens of a text's beginning need not be read again."""
        return max(num_shared(known, text) for known in (self._token_ids, *(each.token_ids for each in self.saved)))

    def read_on(self, text: list[int]) -> int:
        """Keep the longest prefix that the cache shares with a text, without its last token; return how much is left.

        The last token is read again, as nobody keeps the logits after it. A window or a state may have lost some more.
        """
        shared = min(num_shared(self._token_ids, text), len(text) - 1)
        if shared > 0:
            self.rollback(shared)
        else:
            self._clear()
        self.num_reused = self.length
        return self.length

    def append(
        self,
        token_ids: list[int] | Tensor,
        rows: int,
        positions: list[int] | Tensor | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """Feed tokens after the cached ones; return the logits after each of the last ``rows``, ``[rows, vocabulary]``.

        An error or an interruption leaves the cache empty. Positions, of each token in the text that leads to it, and a
        mask make a tree of the tokens, as `Forward.append` takes them. Raises `ValueError` for ones that do not fit, or
        of a model that cannot take them, and `Cancelled` as `cancel_by` says.
        """
        if not torch.is_inference_mode_enabled():  # to enter it takes time, and the loop has
            with torch.inference_mode():
                return BaseCachedModel.append(self, token_ids, rows, positions, mask)
        if self._forward is None or not self.length:  # what ended early may have left one that is not empty
            self._forward = self._choose_forward()
        block = torch.as_tensor(token_ids, device=self.device)
        read: list[int] = block.tolist() if isinstance(token_ids, torch.Tensor) else token_ids
        if self.read_as is not None:
            block = self.read_as[block]
        tree = () if positions is None and mask is None else self._checked(len(block), positions, mask)
        try:
            if self._cancelled is not None and self._cancelled.is_set():
                raise Cancelled
            logits = self._forward.append(block, self.length, rows, *tree)
            self._token_ids.extend([~token for token in read] if tree else read)
        except BaseException as error:
            self._forget_after(error, tree=bool(tree))
            raise
        return logits

    def rollback(self, length: int) -> None:
        """Forget all but the first ``length`` tokens, or more where a window or a state has lost some of those."""
        self._keep(length, [])

    @torch.inference_mode()
    def keep(self, indices: Sequence[int]) -> None:
        """Forget all tokens but those at these ascending places of the cache: those of a path through a tree.

        ``keep(range(n))`` is ``rollback(n)``.
        """
        prefix = next((i for i, place in enumerate(indices) if place != i), len(indices))
        path = list(indices[prefix:])
        if any(before >= after for before, after in pairwise([prefix - 1, *path, self.length])):
            raise ValueError(f"indices must ascend from 0 to at most {self.length - 1}, but are {list(indices)}")
        self._keep(prefix, path)

    def _keep(self, prefix: int, path: list[int]) -> None:
        try:
            kept = 0 if self._forward is None else self._forward.keep(self.length, prefix, path)
            ids = self._token_ids
            self._token_ids = [*ids[: min(prefix, kept)], *(max(ids[i], ~ids[i]) for i in path)] if kept else []
        except BaseException as error:
            self._forget_after(error, tree=bool(path))
            raise
        if not self.length:
            self._forward = None

    def _forget_after(self, error: BaseException, *, tree: bool) -> None:
        """Empty the cache: its layers may hold different numbers of tokens. A refused tree has changed nothing."""
        if not (tree and isinstance(error, ValueError)):
            self._clear()

    def _checked(
        self, count: int, positions: list[int] | Tensor | None, mask: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None]:
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


def num_shared(some: Sequence[object], others: Sequence[object]) -> int:
    """Return how many equal items two sequences begin with; slices are compared, without a loop over items."""
    low, high = 0, min(len(some), len(others))
    if some[:high] == others[:high]:
        return high
    while high - low > 1:  # they are equal before the one and differ before the other
        middle = (low + high) // 2
        low, high = (middle, high) if some[low:middle] == others[low:middle] else (low, middle)
    return low


def check_fits(role: str, window: int | None, prompt_length: int, num_speculative_tokens: int) -> None:
    if window is None:
        return
    if num_speculative_tokens >= window:
        raise ValueError(
            f"num_speculative_tokens must be below the {role}'s {window} positions, but is {num_speculative_tokens}"
        )
    if prompt_length >= window:
        raise PromptTooLongError(
            f"the prompt must be shorter than the {role}'s {window} positions, but has {prompt_length} tokens"
        )


def tree_inputs(length: int, parents: Sequence[int], first: int = 0) -> dict[str, Any]:
    paths: list[list[int]] = []
    for node, parent in enumerate(parents):
        paths.append([*(paths[parent] if parent >= 0 else []), node])
    read = paths[first:]
    mask = torch.zeros(len(read), length + len(parents), dtype=torch.bool)
    mask[:, :length] = True
    rows = [row for row, path in enumerate(read) for _ in path]
    mask[rows, [length + node for path in read for node in path]] = True
    return {"positions": [length + len(path) - 1 for path in read], "mask": mask}


def path_places(length: int, path: Sequence[int]) -> list[int]:
    """Return the places of a text and of a path through the tree after it, as `BaseCachedModel.keep` takes them."""
    return [*range(length), *(length + node for node in path)]


def append_proposal(model: BaseCachedModel, text: list[int], proposal: Proposal) -> Tensor:
    """Read the unread part of a text and a proposal; return the logits after the text and each proposal."""
    token_ids = proposal.token_ids
    if not proposal.branches:  # a chain needs no mask, which for a prompt would grow with its square
        return model.append([*text[model.length :], *token_ids], rows=len(token_ids) + 1)
    if len(text) - model.length > 1:
        model.append(text[model.length : -1], rows=1)
    behind = [-1, *(1 + parent for parent in proposal.parents)]  # the last token of the text is the root
    return model.append([text[-1], *token_ids], len(behind), **tree_inputs(len(text) - 1, behind))


def keep_path(model: BaseCachedModel, length: int, proposal: Proposal, path: Sequence[int]) -> None:
    if proposal.branches:
        model.keep(path_places(length, path))
    else:
        model.rollback(length + len(path))
