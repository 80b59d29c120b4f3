"""Models with a recurrent state, from which no token can be removed: they go back to copies of the state."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

from cactus_decoding.core.models.base import Forward

_PROMPT = 32  # from so many tokens on, what is read before the last rows is a prompt, which other texts may share


class StatefulForward(Forward, Protocol):
    """A forward pass that keeps a state beside keys and values, or instead of them."""

    def can_undo(self, count: int) -> bool:
        """Whether `undo` will be able to take back the last tokens of a block that long."""
        return False

    def undo(self, length: int, prefix: int) -> bool:
        """Take the last tokens back without a copy and return True, or change nothing and return False."""
        return False

    def copy_state(self) -> Any: ...

    def restore_state(self, state: Any, length: int) -> None:
        """Go back to a copy that was made after so many tokens."""


class RecurrentForward:
    """Takes tokens back if its pass can undo them, else by a copy of the state from before they were read.

    A copy is made before each block of tokens whose rows are asked for. Tokens to keep after it are read again with the
    next block, so `keep` may keep fewer tokens than it is told to.
    """

    def __init__(self, forward: StatefulForward) -> None:
        self._forward, self._copies = forward, list[tuple[int, Any]]()  # ascending

    def append(
        self, token_ids: Tensor, start: int, rows: int, positions: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        if positions is not None or mask is not None:
            raise ValueError("models with a recurrent state read chains, and no trees")
        before = len(token_ids) - rows
        if before < _PROMPT and self._forward.can_undo(rows):
            return self._forward.append(token_ids, start, rows)
        if before > 0:
            self._forward.append(token_ids[:before], start, 1)
            start += before
        if start and start not in (place for place, _ in self._copies):
            self._copies.append((start, self._forward.copy_state()))
        return self._forward.append(token_ids[before:], start, rows)

    def keep(self, length: int, prefix: int, path: list[int]) -> int:
        """Keep a prefix, or as much of it as the nearest copy holds; nothing where there is none."""
        self._copies = [(place, state) for place, state in self._copies if place <= prefix]
        if length > prefix and not self._forward.undo(length, prefix):
            if not self._copies:
                return 0
            prefix, state = self._copies[-1]
            self._forward.restore_state(state, prefix)
        self._copies = [*self._copies[:1], *self._copies[1:][-1:]]  # a prompt's end, and where this step began
        return prefix

    def save(self, length: int) -> tuple[Any, list[tuple[int, Any]]]:
        return self._forward.save(length), [*self._copies]

    def restore(self, saved: tuple[Any, list[tuple[int, Any]]]) -> None:
        state, self._copies = saved
        self._forward.restore(state)
