"""Answers that come bit by bit, and end when whoever asked leaves."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

import anyio
from starlette.types import Receive, Scope, Send


class StreamedResponse:
    """Sends parts as they come, and closes their source when the reader leaves: its place is then free for others.

    Args:
        source: of the parts.
        media_type: what they are.
    """

    def __init__(self, source: AsyncGenerator[bytes], media_type: str) -> None:
        self._source, self._media_type = source, media_type

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send them."""
        headers = [(b"content-type", self._media_type.encode()), (b"x-accel-buffering", b"no")]
        async with aclosing(self._source) as source, anyio.create_task_group() as tasks:
            tasks.start_soon(leave_with, receive, tasks.cancel_scope)
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            async for part in source:
                await send({"type": "http.response.body", "body": part, "more_body": True})
            tasks.cancel_scope.cancel()
        await send({"type": "http.response.body", "body": b""})


async def leave_with(receive: Receive, scope: anyio.CancelScope) -> None:
    """Cancel a scope when whoever asked has left."""
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()
