"""So many generations at a time: a queue in which everyone knows their place."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractContextManager

import anyio


class QueueIsFullError(ValueError):
    """Nobody else may queue."""


class RequestQueue:
    """A first-come-first-served queue for some seats, in which a number of others may wait."""

    def __init__(self, limit: int, seats: int = 1) -> None:
        self._limit, self._seats = limit, seats
        self._places: list[Place] = []

    def check_open(self) -> None:
        """Raise `QueueIsFullError` if too many wait."""
        if len(self._places) >= self._limit + self._seats:
            raise QueueIsFullError(f"{self._limit} others are waiting already, which is the limit; try again soon")

    def join(self) -> Place:
        """Return a place at the end, to be entered at once."""
        return Place(self._places, self._seats)


class Place(AbstractContextManager["Place"]):
    """A place in a queue; leaving it, for whatever reason, moves everyone behind up."""

    def __init__(self, queue: list[Place], seats: int) -> None:
        self._queue, self._seats, self._moved = queue, seats, anyio.Event()
        queue.append(self)

    def __exit__(self, *_: object) -> None:
        """Leave, and tell those behind."""
        index = self._queue.index(self)
        self._queue.remove(self)
        for place in self._queue[index:]:
            place._moved.set()

    async def ahead(self) -> AsyncIterator[int]:
        """Yield how many have to leave first, again whenever that changes, and end when it is this place's turn."""
        while (ahead := self._queue.index(self) - self._seats + 1) > 0:
            self._moved = anyio.Event()
            yield ahead
            await self._moved.wait()
