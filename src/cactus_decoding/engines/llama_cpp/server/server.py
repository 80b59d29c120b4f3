"""`cactus serve --engine llama-cpp`: an OpenAI-compatible server for one pair of GGUF files.

llama-cpp-python's own server is not extended: its request types ignore names that they do not know, its addresses, its
model and its lock are globals of a module, and it has no limit on who waits.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import aclosing, closing
from functools import cached_property, partial
from typing import Any

from anyio import CancelScope, CapacityLimiter
from anyio.to_thread import run_sync
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from cactus_decoding import __version__
from cactus_decoding.core.checks import short_repr
from cactus_decoding.core.constraints.base import Constraint, ConstraintError
from cactus_decoding.core.constraints.thinking import thinking_marks
from cactus_decoding.core.counters import RuleCounters
from cactus_decoding.core.files.writing import as_json
from cactus_decoding.core.models.base import Cancelled
from cactus_decoding.core.request import Request as GenerationRequest
from cactus_decoding.core.types import Outcome
from cactus_decoding.engines.llama_cpp.models import tokenizer as templates
from cactus_decoding.engines.llama_cpp.pairs import PairPool
from cactus_decoding.engines.llama_cpp.server.call_grammar import CallMarks
from cactus_decoding.engines.llama_cpp.server.completion import (
    Completion,
    CompletionParams,
    prompts_of,
    read_completion,
)
from cactus_decoding.engines.llama_cpp.server.constraints import ConstraintMaker
from cactus_decoding.engines.openai.bodies import Body, ChatBody, CompletionBody
from cactus_decoding.engines.openai.description import DetokenizeBody, TokenizeBody, description
from cactus_decoding.engines.openai.keys import (
    INVALID,
    Marks,
    UnknownModelError,
    code_of,
    error_body,
    errors_about,
    param_of,
)
from cactus_decoding.engines.openai.responses import ResponsesBody, ResponseWriter, chat_of
from cactus_decoding.engines.openai.serving import (
    WHO,
    Guards,
    KeyGuard,
    QueueIsFullError,
    RequestQueue,
    StreamedResponse,
    address_of,
    names_of,
    read_body,
    server_of,
)

MAX_BODY = 4 * 2**20  # bytes of a request
_ASKS_FOR_KEY = ("/v1/", "/tokenize", "/detokenize")
_GOT = {
    "/health": "Whether the server answers.",
    "/metrics": "What rules did, for Prometheus.",
    "/v1/models": "The model.",
    "/v1/models/{model}": "The model, under its name.",
    "/openapi.json": "This description.",
}
_POSTED: dict[str, type[Body]] = {
    "/v1/completions": CompletionBody,
    "/v1/chat/completions": ChatBody,
    "/v1/responses": ResponsesBody,
    "/tokenize": TokenizeBody,
    "/detokenize": DetokenizeBody,
}
_READERS = 4  # requests that are checked at a time: what grammars take is not taken from the threads that answer


class ChunkWriter:
    """Writes completions and answers to conversations, as they are made."""

    def parts(self, chunks: Iterable[Mapping[str, Any]]) -> Iterator[bytes]:
        yield from map(self.error, chunks)
        yield b"data: [DONE]\n\n"

    def error(self, error: Mapping[str, Any]) -> bytes:
        return b"data: " + as_json(error).encode() + b"\n\n"


Writer = ChunkWriter | ResponseWriter


class LlamaServer:
    def __init__(
        self, seats: PairPool, name: str, defaults: Mapping[str, Any], waiting: int, *, shared: bool = False
    ) -> None:
        self._shared = shared
        self.name, self._seats, self._defaults = name, seats, defaults
        self.queue, self.counters = RequestQueue(waiting, len(seats.pairs)), RuleCounters(CollectorRegistry())
        self._constraints = ConstraintMaker(seats.pairs[0])
        self._begun, self._running = int(time.time()), set[threading.Event]()
        self._ready, self._preparing, self._stopping = Future[None](), threading.Lock(), threading.Event()
        self._ready.set_running_or_notify_cancel()  # no request that leaves cancels it

    async def health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def metrics(self, request: Request) -> Response:
        return Response(self.counters.text(), media_type=CONTENT_TYPE_LATEST)

    async def models(self, request: Request) -> Response:
        model = {"id": self.name, "object": "model", "created": self._begun, "owned_by": "cactus-decoding"}
        model |= {"max_model_len": self._seats.pairs[0].target.max_length}
        if (name := request.path_params.get("model")) is None:
            return JSONResponse({"object": "list", "data": [model]})
        if name != self.name:
            raise UnknownModelError(
                f"there is no model {short_repr(name)} here, but {self.name!r}, which answers to any name"
            )
        return JSONResponse(model)

    async def openapi(self, request: Request) -> Response:
        return JSONResponse(description(_POSTED, _GOT, version=__version__))

    async def tokenize(self, request: Request) -> Response:
        body = TokenizeBody.read(await read_body(request, MAX_BODY))
        return JSONResponse(await run_sync(self._tokenize, body, limiter=self._readers))

    def _tokenize(self, body: TokenizeBody) -> dict[str, Any]:
        pair = self._seats.pairs[0]
        tokenizer: Any = pair.tokenizer
        if body.prompt is None:
            [ids] = prompts_of(pair, read_completion(body.chat, self._defaults, chat=True, pair=pair))
        else:
            ids = list(tokenizer(body.prompt, add_special_tokens=body.add_special_tokens).input_ids)
        texts = [tokenizer.convert_ids_to_tokens(each) for each in ids] if body.return_token_strs else None
        return {"count": len(ids), "max_model_len": pair.target.max_length, "tokens": ids, "token_strs": texts}

    async def detokenize(self, request: Request) -> Response:
        ids = DetokenizeBody.read(await read_body(request, MAX_BODY)).tokens
        tokenizer: Any = self._seats.pairs[0].tokenizer
        if ids and max(ids) >= len(tokenizer):
            raise ValueError(f"tokens must be from 0 to {len(tokenizer) - 1}, but one is {max(ids)}")
        return JSONResponse({"prompt": await run_sync(tokenizer.decode, ids, limiter=self._readers)})

    async def complete(self, request: Request, *, chat: bool) -> ASGIApp:
        return await self._when_read(request, await read_body(request, MAX_BODY), ChunkWriter(), chat=chat)

    async def respond(self, request: Request) -> ASGIApp:
        given = await read_body(request, MAX_BODY)
        body = ResponsesBody.read(given)
        return await self._when_read(request, chat_of(body, given), ResponseWriter(body), chat=True)

    async def _when_read(self, request: Request, body: Mapping[str, Any], writer: Writer, *, chat: bool) -> ASGIApp:
        # in a thread, because a grammar may take seconds, and before it is its turn: other answers go on meanwhile
        asked, constraint = await run_sync(partial(self._read, body, chat=chat), limiter=self._readers)
        self.queue.check_open()
        cancelled = threading.Event()
        kind = "text/event-stream" if asked.body.stream else "application/json"
        owner = None if self._shared else request.scope.get(WHO)
        source = self._answer(partial(self._parts, asked, constraint, writer, cancelled, owner), writer, cancelled)
        return StreamedResponse(source, kind, cancelled.set)

    def _read(self, body: Mapping[str, Any], *, chat: bool) -> tuple[CompletionParams, Constraint | None]:
        pair, marks, thinking = self._seats.pairs[0], self._marks, self._thinking
        asked = read_completion(body, self._defaults, chat=chat, pair=pair, marks=marks, thinking=thinking)
        if asked.grammar is None:
            return asked, None
        named = asked.grammar.name.split()[-1]
        with errors_about(named if named in type(asked.body).model_fields else "tools"):
            return asked, self._constraints.make(asked.grammar)

    @cached_property
    def _marks(self) -> CallMarks:
        return CallMarks.of(self._seats.pairs[0].tokenizer)

    @cached_property
    def _thinking(self) -> Marks | None:
        """The tokens around the model's thinking part, if its chat template has such marks."""
        marks = thinking_marks(self._seats.pairs[0].tokenizer)
        return None if marks is None else ((marks[0],), (marks[1],))

    @cached_property
    def _readers(self) -> CapacityLimiter:
        return CapacityLimiter(_READERS)

    def get_ready(self, failed: Callable[[], None]) -> None:
        """Do what takes a while and what requests wait for, in a thread of its own."""
        gc.disable()  # what is imported stays
        try:
            with self._preparing:
                if not self._stopping.is_set():
                    self._constraints.prepare()
            self._ready.set_result(None)
        except Exception as error:
            self._ready.set_exception(error)
            return failed()
        finally:
            gc.enable()
        templates.start_templates()

    def stop(self) -> None:
        """End what runs; raise `ValueError` where the server could never answer."""
        for event in [self._stopping, *self._running]:
            event.set()
        self._constraints.close()
        with self._preparing:  # models must not be freed before they are left
            error = self._ready.exception() if self._ready.done() else None
        if error is not None and not isinstance(error, Cancelled):
            raise ValueError(f"the server cannot answer: {type(error).__name__}: {error}") from error

    async def _answer(
        self, parts_of: Callable[[], Generator[bytes]], writer: Writer, cancelled: threading.Event
    ) -> AsyncGenerator[bytes]:
        """Yield an answer's JSON, or server-sent events; an error after the first of these is the last."""
        with self.queue.join() as place:
            async for _ in place.ahead():
                pass
            try:
                await asyncio.wrap_future(self._ready)
            except Exception as error:
                raise HTTPException(503, "the server could not get ready, and stops") from error
            begun = False
            try:
                async with aclosing(self._run(parts_of, cancelled)) as parts:
                    async for part in parts:
                        yield part
                        begun = True
            except Exception as error:
                if not begun or isinstance(error, Cancelled):
                    raise
                if isinstance(error, ConstraintError):
                    yield writer.error(error_body(str(error), code=code_of(error)))
                    return
                logging.getLogger(__name__).exception("a stream failed")
                yield writer.error(error_body(f"the server failed at this: {type(error).__name__}", "server_error"))

    def _parts(
        self,
        asked: CompletionParams,
        constraint: Constraint | None,
        writer: Writer,
        cancelled: threading.Event,
        owner: int | None,
    ) -> Generator[bytes]:
        """Yield the parts of an answer, in the thread that reads the model."""

        def count(request: GenerationRequest, outcome: Outcome) -> None:
            if cancelled.is_set():  # between two steps, where what was read can stay
                raise Cancelled
            self.counters.add_step(request.rule, outcome)

        prompts = prompts_of(self._seats.pairs[0], asked)
        with self._seats.take(prompts[0], cancelled, owner) as pair:
            completion = Completion(pair, asked, prompts, self.name, count, constraint)
            if asked.body.stream:
                with closing(completion.chunks()) as chunks:  # what fails in the writer leaves them half-way
                    yield from writer.parts(chunks)
            elif isinstance(writer, ResponseWriter):
                with closing(completion.chunks()) as chunks:
                    yield as_json(writer.whole(chunks)).encode()
            else:
                yield as_json(completion.whole()).encode()

    async def _run(self, make: Callable[[], Generator[bytes]], cancelled: threading.Event) -> AsyncGenerator[bytes]:
        """Yield what a thread makes, which waits for nobody, and is not left alone: others may have its turn next."""
        loop, parts = asyncio.get_running_loop(), asyncio.Queue[bytes | None]()

        def run() -> None:
            try:
                with closing(make()) as made:
                    for part in made:
                        loop.call_soon_threadsafe(parts.put_nowait, part)
            finally:
                loop.call_soon_threadsafe(parts.put_nowait, None)

        self._running.add(cancelled)
        work = asyncio.ensure_future(run_sync(run))
        try:
            while (part := await parts.get()) is not None:
                yield part
            await work
        finally:
            cancelled.set()
            with CancelScope(shield=True):
                await asyncio.wait([work])
                work.exception()  # which is raised above, or of no interest any more
            self._running.discard(cancelled)

    def application(self, hosts: tuple[str, ...] | None, keys: Sequence[str], origins: Sequence[str] = ()) -> ASGIApp:
        """Return the application that answers under some names, or under any, and to all or those who know a key."""
        routes = [
            Route("/health", self.health),
            Route("/metrics", self.metrics),
            Route("/openapi.json", self.openapi),
            Route("/tokenize", self.tokenize, methods=["POST"]),
            Route("/detokenize", self.detokenize, methods=["POST"]),
            Route("/v1/models", self.models),
            Route("/v1/models/{model:path}", self.models),
            Route("/v1/completions", partial(self.complete, chat=False), methods=["POST"]),
            Route("/v1/chat/completions", partial(self.complete, chat=True), methods=["POST"]),
            Route("/v1/responses", self.respond, methods=["POST"]),
        ]
        handlers = {
            QueueIsFullError: _sentence(503, "overloaded_error"),
            UnknownModelError: _sentence(404, INVALID),
            ValueError: _sentence(400, INVALID),
            TypeError: _sentence(400, INVALID),
            Cancelled: _sentence(503, "cancelled"),  # the server stops, or nobody is there to read it
            HTTPException: _http,
            Exception: _failed,
        }
        app: ASGIApp = Starlette(routes=routes, exception_handlers=handlers)
        if keys:
            app = KeyGuard(app, keys, _ASKS_FOR_KEY)
        return Guards(app, hosts, origins)


def run_llama_server(
    server: LlamaServer,
    host: str,
    listening: socket.socket,
    keys: Sequence[str],
    origins: Sequence[str],
    announce: Callable[[str], None],
) -> None:
    announce(address_of(host, listening))
    running = server_of(server.application(names_of(host), keys, origins))
    # that it is there is answered first
    timer = threading.Timer(0.2, server.get_ready, (partial(setattr, running, "should_exit", True),))
    timer.daemon = True
    timer.start()
    try:
        running.run(sockets=[listening])
    finally:
        timer.cancel()
        server.stop()


def _sentence(status: int, kind: str) -> Callable[[Request, Exception], Response]:
    def answer(request: Request, error: Exception) -> Response:
        code = code_of(error) if kind == INVALID else None
        return JSONResponse(error_body(str(error) or kind, kind, code, param_of(error)), status_code=status)

    return answer


def _http(request: Request, error: Any) -> Response:
    return JSONResponse(error_body(str(error.detail)), status_code=error.status_code)


def _failed(request: Request, error: Exception) -> Response:
    """Answer with a sentence; the details are in the log of whoever runs the server, where Starlette puts them."""
    return JSONResponse(
        error_body(f"the server failed at this: {type(error).__name__}", "server_error"), status_code=500
    )
