"""One generation at a time: a queue in which everyone knows their place."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import TracebackType

import anyio


class LineIsFullError(ValueError):
    """Nobody else may queue."""


class Line:
    """A first-come-first-served queue for one seat."""

    def __init__(self, limit: int) -> None:
        """Start empty; ``limit`` is how many may wait."""
        self._limit = limit
        self._places: list[Place] = []

    def check_open(self) -> None:
        """Raise `LineIsFullError` if too many wait."""
        if len(self._places) > self._limit:
            raise LineIsFullError(f"{self._limit} others are waiting already, which is the limit; try again soon")

    def join(self) -> Place:
        """Return a place at the end, to be entered at once."""
        return Place(self._places)


class Place:
    """A place in a line; leaving it, for whatever reason, moves everyone behind up."""

    def __init__(self, line: list[Place]) -> None:
        """Take the last place of a line."""
        self._line, self._moved = line, anyio.Event()
        line.append(self)

    def __enter__(self) -> Place:
        """Stay in the line."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave, and tell those behind."""
        index = self._line.index(self)
        self._line.remove(self)
        for place in self._line[index:]:
            place._moved.set()

    async def ahead(self) -> AsyncIterator[int]:
        """Yield how many are ahead, again whenever that changes, and end when it is this place's turn."""
        while ahead := self._line.index(self):
            self._moved = anyio.Event()
            yield ahead
            await self._moved.wait()
