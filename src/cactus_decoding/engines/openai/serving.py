"""What servers need beside an engine: a queue of requests, a port, and streams that end well."""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractContextManager, aclosing

import anyio
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send


class QueueIsFullError(ValueError):
    pass


class RequestQueue:
    """A first-come-first-served queue for some seats, in which at most ``limit`` others may wait."""

    def __init__(self, limit: int, seats: int = 1) -> None:
        self._limit, self._seats = limit, seats
        self._places: list[QueuePlace] = []

    def check_open(self) -> None:
        if len(self._places) >= self._limit + self._seats:
            raise QueueIsFullError(f"{self._limit} others are waiting already, which is the limit; try again soon")

    def join(self) -> QueuePlace:
        return QueuePlace(self._places, self._seats)


class QueuePlace(AbstractContextManager["QueuePlace"]):
    """A place in a queue; leaving it, for whatever reason, moves up all places after it."""

    def __init__(self, queue: list[QueuePlace], seats: int) -> None:
        self._queue, self._seats, self._moved = queue, seats, anyio.Event()
        queue.append(self)

    def __exit__(self, *_: object) -> None:
        index = self._queue.index(self)
        self._queue.remove(self)
        for place in self._queue[index:]:
            place._moved.set()

    async def ahead(self) -> AsyncIterator[int]:
        """Yield how many must leave first, again whenever that changes; end when it is this place's turn."""
        while (ahead := self._queue.index(self) - self._seats + 1) > 0:
            self._moved = anyio.Event()
            yield ahead
            await self._moved.wait()


def address_of(host: str, listening: socket.socket) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}/"


def server_of(application: ASGIApp) -> uvicorn.Server:
    """Return a server that leaves the console to others and ends within seconds."""
    settings = uvicorn.Config(
        application,
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="off",
        ws="none",
        timeout_graceful_shutdown=2,
    )
    return uvicorn.Server(settings)


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens; raise `ValueError` with the reason if that fails."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        raise ValueError(f"cannot listen on {host}:{port}: {error.strerror or error}") from None


class StreamedResponse:
    """Sends parts as they come, and closes their source when the reader leaves, so that its place is free for others.

    What fails before the first part is raised, so that it can still be answered with a status of its own.
    ``on_leaving`` is called as soon as the reader has left, before the source is closed.
    """

    def __init__(
        self, source: AsyncGenerator[bytes], media_type: str, on_leaving: Callable[[], object] = lambda: None
    ) -> None:
        self._source, self._media_type, self._on_leaving = source, media_type, on_leaving

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers, begun = [(b"content-type", self._media_type.encode()), (b"x-accel-buffering", b"no")], False
        failure: Exception | None = None
        left = False
        async with aclosing(self._source) as source, anyio.create_task_group() as tasks:

            async def leave_with_the_reader() -> None:
                nonlocal left
                while (await receive())["type"] != "http.disconnect":
                    pass
                left = True
                self._on_leaving()
                tasks.cancel_scope.cancel()

            tasks.start_soon(leave_with_the_reader)
            try:
                async for part in source:
                    if not begun:
                        await send({"type": "http.response.start", "status": 200, "headers": headers})
                        begun = True
                    await send({"type": "http.response.body", "body": part, "more_body": True})
            except Exception as error:  # raised below, and not as one of a group
                failure = error
            tasks.cancel_scope.cancel()
        if failure is not None and not left:
            raise failure
        if begun and not left:
            await send({"type": "http.response.body", "body": b""})
