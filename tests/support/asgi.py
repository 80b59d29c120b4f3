"""Asks an application in this process, without a socket."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from starlette.types import ASGIApp, Message


async def answered(
    app: ASGIApp, method: str, path: str, body: object = None, *, cut: bool = False, **headers: str
) -> tuple[int, bytes]:
    """Return the status and the body of an answer; raise what the application raises. A ``cut`` request breaks off."""
    data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    given = {"host": "127.0.0.1"} | ({} if body is None else {"content-type": "application/json"}) | headers
    incoming = [{"type": "http.request", "body": data, "more_body": cut}] + [{"type": "http.disconnect"}] * cut
    status, parts = 0, []

    async def receive() -> Message:
        if not incoming:
            await asyncio.Event().wait()  # nobody leaves
        return incoming.pop(0)

    async def send(message: Message) -> None:
        nonlocal status
        status = message.get("status", status)
        parts.append(message.get("body", b""))

    scope = {
        "type": "http", "http_version": "1.1", "method": method, "scheme": "http", "path": path, "query_string": b"",
        "raw_path": path.encode(), "root_path": "", "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80),
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in given.items()],
    }  # fmt: skip
    await app(scope, receive, send)
    return status, b"".join(parts)


def ask(app: ASGIApp, method: str, path: str, body: object = None, **given: Any) -> tuple[int, bytes]:
    return asyncio.run(answered(app, method, path, body, **given))
