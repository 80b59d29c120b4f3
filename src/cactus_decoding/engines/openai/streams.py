"""Answers that come bit by bit, and end when whoever asked leaves."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

import anyio
from starlette.types import Receive, Scope, Send


class StreamedResponse:
    """Sends parts as they come, and closes their source when the reader leaves: its place is then free for others.

    What fails before the first part is raised, so that it can still be answered with a status of its own.

    ``on_leaving`` is called as soon as the reader has left, before the source is closed.
    """

    def __init__(
        self, source: AsyncGenerator[bytes], media_type: str, on_leaving: Callable[[], object] = lambda: None
    ) -> None:
        self._source, self._media_type, self._on_leaving = source, media_type, on_leaving

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send them."""
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
