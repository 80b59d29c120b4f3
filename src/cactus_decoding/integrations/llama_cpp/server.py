"""`cactus serve --engine llama-cpp`: an OpenAI-compatible server for one pair of GGUF files.

llama-cpp-python's own server is not extended: its request types ignore names that they do not know, its addresses, its
model and its lock are globals of a module, and it has no limit on who waits.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from functools import partial
from typing import Any

from anyio.to_thread import run_sync
from jinja2 import TemplateError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from cactus_decoding.files.writing import as_json
from cactus_decoding.integrations.llama_cpp.calls import Cancelled
from cactus_decoding.integrations.llama_cpp.counters import RuleCounters
from cactus_decoding.integrations.llama_cpp.llama import CactusLlama
from cactus_decoding.integrations.llama_cpp.request import Asked, UnknownModelError, read_completion
from cactus_decoding.serving.guards import Guards, KeyGuard, names_of, read_json
from cactus_decoding.serving.request_queue import QueueIsFullError, RequestQueue
from cactus_decoding.serving.starting import address_of, server_of
from cactus_decoding.serving.streams import StreamedResponse

MAX_BODY = 4 * 2**20
"""Bytes of a request."""
_ASKS_FOR_KEY = "/v1/"


class LlamaServer:
    """One model, whose requests take turns.

    Args:
        llama: the model; its ``on_step`` becomes the counters'.
        name: of the model, as requests name it.
        usual: settings of requests that say nothing; those that the model was made with.
        waiting: how many requests may wait.
    """

    def __init__(self, llama: CactusLlama, name: str, usual: Mapping[str, Any], waiting: int) -> None:
        self.llama, self.name, self._usual = llama, name, usual
        self.queue, self.counters = RequestQueue(waiting), RuleCounters()
        llama.on_step = self.counters.add
        self._begun, self._running = int(time.time()), set[threading.Event]()

    async def health(self, request: Request) -> Response:
        """Say that the server answers."""
        return JSONResponse({"status": "ok"})

    async def metrics(self, request: Request) -> Response:
        """Return what rules did."""
        return PlainTextResponse(self.counters.text(), media_type="text/plain; version=0.0.4")

    async def models(self, request: Request) -> Response:
        """Name the model."""
        model = {"id": self.name, "object": "model", "created": self._begun, "owned_by": "cactus-decoding"}
        return JSONResponse({"object": "list", "data": [model]})

    async def complete(self, request: Request, *, chat: bool) -> ASGIApp:
        """Check what is asked, and answer when it is its turn."""
        asked = read_completion(await read_json(request, MAX_BODY), self.name, self._usual, chat=chat)
        self.queue.check_open()
        cancelled = threading.Event()
        answer, kind = (self._stream, "text/event-stream") if asked.stream else (self._whole, "application/json")
        return StreamedResponse(answer(asked, cancelled), kind, cancelled.set)

    def stop(self) -> None:
        """End what runs."""
        for event in list(self._running):
            event.set()

    async def _whole(self, asked: Asked, cancelled: threading.Event) -> AsyncGenerator[bytes]:
        with self.queue.join() as place:
            async for _ in place.ahead():
                pass
            yield as_json(await self._call(self._create(asked, cancelled), cancelled)).encode()

    async def _stream(self, asked: Asked, cancelled: threading.Event) -> AsyncGenerator[bytes]:
        """Yield server-sent events; an error behind the first of them is the last."""
        with self.queue.join() as place:
            async for _ in place.ahead():
                pass
            chunks = await self._call(self._create(asked, cancelled), cancelled)
            latest: dict[str, Any] | None = None
            try:
                while (chunk := await self._call(partial(next, chunks, None), cancelled)) is not None:
                    latest = chunk | {"model": self.name}
                    yield _event(latest)
                if asked.usage and latest is not None:
                    yield _event(latest | {"choices": [], "usage": self.llama.usage})
                yield b"data: [DONE]\n\n"
            except Exception as error:
                if latest is None or isinstance(error, Cancelled):
                    raise
                logging.getLogger(__name__).exception("a stream failed")
                yield _event(_error(f"the server failed at this: {type(error).__name__}", "server_error"))
            finally:
                chunks.close()

    def _create(self, asked: Asked, cancelled: threading.Event) -> Callable[[], Any]:
        create = self.llama.create_chat_completion if asked.chat else self.llama.create_completion
        return partial(create, **asked.arguments, model=self.name, cancelled=cancelled)

    async def _call(self, function: Callable[[], Any], cancelled: threading.Event) -> Any:
        """Call what uses the model in a thread, which is not left alone: nobody else may have its turn meanwhile."""
        self._running.add(cancelled)
        try:
            return await run_sync(function)
        except TemplateError as error:
            raise ValueError(f"the model's chat template refuses this: {error}") from error
        finally:
            self._running.discard(cancelled)

    def application(self, hosts: tuple[str, ...] | None, key: str | None) -> ASGIApp:
        """Return the application that answers under some names, or under any, and to all or those who know a key."""
        routes = [
            Route("/health", self.health),
            Route("/metrics", self.metrics),
            Route("/v1/models", self.models),
            Route("/v1/completions", partial(self.complete, chat=False), methods=["POST"]),
            Route("/v1/chat/completions", partial(self.complete, chat=True), methods=["POST"]),
        ]
        handlers = {
            QueueIsFullError: _sentence(503, "overloaded_error"),
            UnknownModelError: _sentence(404, "not_found_error"),
            ValueError: _sentence(400, "invalid_request_error"),
            TypeError: _sentence(400, "invalid_request_error"),
            Cancelled: _sentence(503, "cancelled"),  # the server stops, or nobody is there to read it
            HTTPException: _http,
            Exception: _failed,
        }
        app: ASGIApp = Starlette(routes=routes, exception_handlers=handlers)
        if key is not None:
            app = KeyGuard(app, key, _ASKS_FOR_KEY)
        return Guards(app, hosts)


def serve(
    server: LlamaServer, host: str, listening: socket.socket, key: str | None, announce: Callable[[str], None]
) -> None:
    """Serve until Ctrl-C.

    Args:
        server: what to serve.
        host: address that is listened on; on loopback only requests under a loopback name are answered.
        listening: from `listen`.
        key: that requests must bring; None for all.
        announce: takes the server's address.
    """
    announce(address_of(host, listening))
    try:
        server_of(server.application(names_of(host), key)).run(sockets=[listening])
    finally:
        server.stop()


def _event(value: Mapping[str, Any]) -> bytes:
    return b"data: " + as_json(value).encode() + b"\n\n"


def _error(message: str, kind: str) -> dict[str, Any]:
    return {"error": {"message": " ".join(message.split()), "type": kind}}


def _sentence(status: int, kind: str) -> Callable[[Request, Exception], Response]:
    def answer(request: Request, error: Exception) -> Response:
        return JSONResponse(_error(str(error) or kind, kind), status_code=status)

    return answer


def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse(_error(str(error.detail), "invalid_request_error"), status_code=error.status_code)


def _failed(request: Request, error: Exception) -> Response:
    """Answer with a sentence; the details are in the log of whoever runs the server, where Starlette puts them."""
    return JSONResponse(_error(f"the server failed at this: {type(error).__name__}", "server_error"), status_code=500)
