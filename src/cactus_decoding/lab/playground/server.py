"""Addresses of the playground, a run as a stream of events, and how the server starts."""

from __future__ import annotations

import logging
import socket
import threading
import webbrowser
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, closing
from pathlib import Path
from typing import Any

from anyio.to_thread import run_sync
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from cactus_decoding.core.files.writing import as_json
from cactus_decoding.core.models.base import Cancelled
from cactus_decoding.core.rules import Rule
from cactus_decoding.engines.openai.serving import (
    BadRequestError,
    Guards,
    QueueIsFullError,
    RequestQueue,
    StreamedResponse,
    address_of,
    names_of,
    read_body,
    server_of,
)
from cactus_decoding.lab.playground.form import FormLimits, RunRequest, form, read_request
from cactus_decoding.lab.playground.runs import PairStore, Runs, UnknownRunError
from cactus_decoding.lab.tracing.page import TRACE_PAGE as SHARED

Events = AsyncGenerator[Mapping[str, Any], None]


async def events(
    queue: RequestQueue, pairs: PairStore, runs: Runs, request: RunRequest, left: threading.Event
) -> Events:
    """Wait, load, generate: the sessions take turns, a step each, so that the one with fewer steps ends first.

    Events are ``queued`` (with how many are ``ahead``), ``loading``, ``started`` (with the ``run``, its ``seed`` and
    its ``sessions``), ``step`` (with ``session`` and what its `PlaygroundSession.step` returns), ``ended`` (with
    ``session`` and what its ``end`` returns), ``finished``, or at any point ``error`` (with a ``message``) as the last.
    Whoever sets ``left`` ends it before the next forward pass, by `Cancelled`.
    """
    with queue.join() as place:  # only here: an answer that is never begun must not hold a place
        try:
            async for ahead in place.ahead():
                yield {"event": "queued", "ahead": ahead}
            if not pairs.has(request.target, request.draft):
                yield {"event": "loading"}
            pair = await run_sync(pairs.get, request.target, request.draft)
            run = await run_sync(runs.begin, pair, request, left)
            with closing(run):  # also where the visitor leaves
                yield {"event": "started", "run": run.name, "seed": run.seed, "sessions": run.describe()}
                going = dict(enumerate(run.sessions))
                while going and not run.stopped:
                    for index, session in list(going.items()):
                        step = await run_sync(session.step)
                        if step is None:
                            del going[index]
                            yield {"event": "ended", "session": index, **session.end()}
                        else:
                            yield {"event": "step", "session": index, **step}
                for index, session in going.items():
                    yield {"event": "ended", "session": index, **session.end(stopped=True)}
                yield {"event": "finished"}
        except Cancelled:  # nobody is there to read of it
            raise
        except (ValueError, TypeError) as error:
            yield {"event": "error", "message": " ".join(str(error).split())}
        except Exception as error:  # a sentence for the visitor, the details for whoever runs the server
            logging.getLogger(__name__).exception("a run failed")
            yield {"event": "error", "message": f"the server failed at this: {type(error).__name__}"}


async def lines(source: Events) -> AsyncGenerator[bytes]:
    async with aclosing(source):
        async for event in source:
            yield as_json(event).encode() + b"\n"


PLAYGROUND_PAGE = Path(__file__).parent / "page"
CONTENT_TYPES = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}


class Playground:
    """What visitors share: models, a queue, and recent runs.

    ``models`` says whether visitors may name models; ``pair`` names the default target and draft; ``rules`` are rules
    from outside the package that visitors may choose, and ``proposals`` is the number that the page begins with.
    """

    def __init__(
        self,
        limits: FormLimits,
        *,
        models: bool,
        pair: tuple[str | None, str | None] = (None, None),
        rules: Sequence[Rule] = (),
        proposals: str | None = None,
    ) -> None:
        self.limits, self.models = limits, models
        self.pairs, self.queue, self.runs = PairStore(pair), RequestQueue(limits.waiting), Runs(limits.runs)
        self._form = form(limits, models=models, rules=rules, proposals=proposals) | {
            "pair": dict(zip(("target", "draft"), pair, strict=True))
        }

    async def show_form(self, request: Request) -> Response:
        return JSONResponse(self._form)

    async def generate(self, request: Request) -> ASGIApp | Response:
        body = await read_body(request, self.limits.body_bytes)
        wanted = read_request(body, self.limits, models=self.models)
        self.queue.check_open()
        left = threading.Event()
        source = lines(events(self.queue, self.pairs, self.runs, wanted, left))
        return StreamedResponse(source, "application/x-ndjson; charset=utf-8", left.set)

    async def check(self, request: Request) -> Response:
        """Whether a run could be asked for in this way, without running it."""
        body = await read_body(request, self.limits.body_bytes)
        read_request(body, self.limits, models=self.models)
        return JSONResponse({})

    async def stop(self, request: Request) -> Response:
        """End a run after its current step."""
        await read_body(request, self.limits.body_bytes)
        self.runs.get(request.path_params["run"]).stopped = True
        return JSONResponse({})

    async def what_if(self, request: Request) -> Response:
        body = await read_body(request, self.limits.body_bytes)
        run = self.runs.get(request.path_params["run"])
        answer = await run_sync(run.what_if, body)
        return Response(as_json(answer), media_type="application/json")

    async def download(self, request: Request) -> Response:
        run, kind = self.runs.get(request.path_params["run"]), request.path_params["kind"]
        if kind not in ("html", "jsonl"):
            raise HTTPException(404, f"a trace is html or jsonl, but not {kind!r}")
        session = run.session(request.path_params["session"])
        text = await run_sync(session.page if kind == "html" else session.lines)
        media_type = "text/html; charset=utf-8" if kind == "html" else "application/x-ndjson; charset=utf-8"
        name = f"trace-{run.name[:6]}-{request.path_params['session']}.{kind}"
        headers = {"Content-Disposition": f'attachment; filename="{name}"'}
        return Response(text, media_type=media_type, headers=headers)

    def application(self, hosts: tuple[str, ...] | None) -> ASGIApp:
        """Return the application that answers under some host names, or under any."""
        run = "/api/runs/{run}"
        routes = [
            Route("/", _show_page),
            Route("/assets/{name}", _show_asset),
            Route("/api/form", self.show_form),
            Route("/api/check", self.check, methods=["POST"]),
            Route("/api/runs", self.generate, methods=["POST"]),
            Route(run + "/stop", self.stop, methods=["POST"]),
            Route(run + "/what-if", self.what_if, methods=["POST"]),
            Route(run + "/{session:int}/trace.{kind}", self.download),
        ]
        handlers = {
            QueueIsFullError: _sentence(503),
            UnknownRunError: _sentence(404),
            BadRequestError: _sentence(400),
            ValueError: _sentence(422),
            TypeError: _sentence(422),
        }
        return Guards(Starlette(routes=routes, exception_handlers=handlers), hosts)


def run_playground(
    playground: Playground, host: str, listening: socket.socket, *, browser: bool, announce: Callable[[str], None]
) -> None:
    """Serve until Ctrl-C, on a socket from `listen`; from loopback only under a loopback name.

    ``announce`` gets the page's address when the models are loaded.
    """
    address = address_of(host, listening)
    announce(address)
    if browser:  # it may take its time, or be a text browser that waits for its user
        threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
    server_of(playground.application(names_of(host))).run(sockets=[listening])


def _show_page(request: Request) -> Response:
    return FileResponse(PLAYGROUND_PAGE / "index.html", media_type="text/html; charset=utf-8")


def _show_asset(request: Request) -> Response:
    name = request.path_params["name"]
    for folder in (PLAYGROUND_PAGE, SHARED):
        if name in {path.name for path in folder.iterdir() if path.suffix in CONTENT_TYPES}:
            return FileResponse(folder / name, media_type=CONTENT_TYPES[Path(name).suffix])
    raise HTTPException(404, f"there is no asset {name!r}")


def _sentence(status: int) -> Callable[[Request, Exception], Response]:
    def answer(request: Request, error: Exception) -> Response:
        return JSONResponse({"message": " ".join(str(error).split())}, status_code=status)

    return answer
