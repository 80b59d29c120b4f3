"""What servers need beside an engine: guards, a queue of requests, a port, and streams that end well."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import math
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager, aclosing, suppress
from typing import Any
from urllib.parse import urlsplit

import anyio
import uvicorn
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from cactus_decoding.core.spelling import importing_nothing
from cactus_decoding.engines.openai.keys import error_body
from cactus_decoding.engines.openai.reading import parse_body

WRITE_SECONDS = 60.0  # in which a reader must take what is written


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


class TimedConnection(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """A connection that is ended where its reader does not take what is written in `WRITE_SECONDS`."""

    _limit: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.transport.set_write_buffer_limits(high=0)  # writing is paused whenever anything has to wait

    def pause_writing(self) -> None:
        super().pause_writing()
        self._limit = asyncio.get_running_loop().call_later(WRITE_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._end_limit()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_limit()
        super().connection_lost(exc)

    def _end_limit(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None


def server_of(application: ASGIApp) -> uvicorn.Server:
    """Return a server that leaves the console to others and ends within seconds."""
    settings = uvicorn.Config(
        application,
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="off",
        ws="none",
        http=TimedConnection,
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
    """Sends parts, and closes their source when the reader leaves, so that its place is free for others.

    A source is not kept waiting by its reader: it ends, and leaves its place, however slowly its parts are read. What
    fails before the first part is raised, so that it can still be answered with a status of its own. ``on_end`` is
    called as soon as the reader has left or has everything, before the source is closed.
    """

    def __init__(
        self, source: AsyncGenerator[bytes], media_type: str, on_end: Callable[[], object] = lambda: None
    ) -> None:
        self._source, self._media_type, self._on_end = source, media_type, on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers, begun = [(b"content-type", self._media_type.encode()), (b"x-accel-buffering", b"no")], False
        made, parts = anyio.create_memory_object_stream[bytes](math.inf)
        failure: Exception | None = None
        left = False
        with made, parts:
            async with anyio.create_task_group() as tasks:

                async def make() -> None:
                    nonlocal failure
                    with made:
                        try:
                            async with aclosing(self._source) as source:
                                async for part in source:
                                    made.send_nowait(part)
                        except Exception as error:  # raised below, and not as one of a group
                            failure = error

                async def leave_with_the_reader() -> None:
                    nonlocal left
                    try:
                        while (await receive())["type"] != "http.disconnect":
                            pass
                        left = True
                    finally:
                        self._on_end()
                    tasks.cancel_scope.cancel()

                tasks.start_soon(make)
                tasks.start_soon(leave_with_the_reader)
                try:
                    async for part in parts:
                        if not begun:
                            await send({"type": "http.response.start", "status": 200, "headers": headers})
                            begun = True
                        await send({"type": "http.response.body", "body": part, "more_body": True})
                except Exception as error:
                    failure = error
                tasks.cancel_scope.cancel()
        try:
            if failure is not None and not left:
                raise failure
            if begun and not left:
                await send({"type": "http.response.body", "body": b""})
        finally:
            failure = None  # which refers to this call, by its traceback


HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
ANY_ORIGIN = "*"
WHO = "cactus_decoding.key"  # in a request's scope: the number of its key
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")


class BadRequestError(ValueError):
    """A request that no honest client sends: invalid JSON, or too much of it."""


class Guards:
    """Wraps the application: checks where a request comes from, and adds headers to the answer.

    Whatever a request spells, no module is imported for it.

    A page elsewhere can make a visitor's browser send requests here. Requests under another host name than ours (DNS
    rebinding) are refused by their ``Host``, requests from another page by their ``Origin``.

    ``hosts`` are the allowed names, without port; None allows any, for a server that does not listen on loopback only.
    ``origins`` are other pages that may ask, such as ``https://chat.example.org``, or ``*`` for all of them.
    """

    def __init__(self, app: ASGIApp, hosts: tuple[str, ...] | None, origins: Sequence[str] = ()) -> None:
        self._hosts, self._origins = hosts, frozenset(origins)
        self._app = CORSMiddleware(app, origins, ["GET", "POST"], ["*"]) if origins else app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        refusal = self._refusal(Headers(scope=scope))
        app = self._app if refusal is None else PlainTextResponse(refusal + "\n", status_code=403)
        # who leaves within a request gets no answer, and no place in the log
        with importing_nothing(), suppress(ClientDisconnect):
            await app(scope, receive, send_with_headers)

    def _refusal(self, headers: Headers) -> str | None:
        host = headers.get("host", "")
        if self._hosts is not None and _name_of(host) not in self._hosts:
            return f"this server answers to {', '.join(self._hosts)} only, but was asked for {host!r}"
        origin = headers.get("origin")
        if origin is not None and not _is_of(host, origin) and not {origin, ANY_ORIGIN} & self._origins:
            return f"a page of {origin!r} may not ask this server"
        return None


class KeyGuard:
    """Wraps the application: answers addresses with some beginnings only to those who bring a key, and notes which."""

    def __init__(self, app: ASGIApp, keys: Sequence[str], prefixes: tuple[str, ...]) -> None:
        self._app, self._prefixes, self._expected = app, prefixes, [key.encode() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        if scope["type"] == "http" and scope["path"].startswith(self._prefixes):
            scheme, _, given = Headers(scope=scope).get("authorization", "").partition(" ")
            key = given.strip().encode() if scheme.lower() == "bearer" else b""
            # takes the same time, however much of the key is right
            found = [hmac.compare_digest(key, each) for each in self._expected]
            if any(found):
                scope[WHO] = found.index(True)
            else:
                message = "a key is needed: Authorization: Bearer KEY"
                app = JSONResponse(
                    error_body(message, "authentication_error", "invalid_api_key"),
                    status_code=401,
                    headers={"WWW-Authenticate": "Bearer"},
                )
        await app(scope, receive, send)


def _is_of(host: str, origin: str) -> bool:
    try:
        return urlsplit(origin).netloc == host
    except ValueError:  # such as http://[
        return False


def _name_of(host: str) -> str:
    """Return a host without its port, in lower case.

    >>> _name_of("LocalHost:8000"), _name_of("[::1]:8000"), _name_of("127.0.0.1")
    ('localhost', '[::1]', '127.0.0.1')
    """
    name, colon, port = host.lower().rpartition(":")
    return name if colon and port.isdigit() else host.lower()


def names_of(host: str) -> tuple[str, ...] | None:
    """Return the names under which a server that listens on an address may be asked; None for any name.

    >>> names_of("127.0.0.2"), names_of("0.0.0.0")
    (('localhost', '127.0.0.1', '[::1]', '127.0.0.2'), None)
    """
    return tuple(dict.fromkeys((*LOOPBACK_NAMES, host))) if is_loopback(host) else None


def is_loopback(host: str) -> bool:
    """Return whether an address to listen on can be reached from this machine only.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


async def read_body(request: Request, limit: int) -> dict[str, Any]:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":  # which a form on another page cannot send
        raise BadRequestError(f"a request must be application/json, but is {kind or 'nothing'!r}")
    body = b""
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > limit:
                raise BadRequestError(f"a request may have {limit} bytes, but this one has more")
    except ClientDisconnect:  # whom no answer reaches
        raise BadRequestError("a request must come as a whole, but this one was cut off") from None
    try:
        value = parse_body(body, "a request")
    except ValueError as error:
        raise BadRequestError(str(error)) from None
    if not isinstance(value, dict):
        raise BadRequestError("a request must be a JSON object")
    return value
