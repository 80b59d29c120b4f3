"""Answers to those who read slowly, or not at all: they keep nobody's place."""

import threading
from contextlib import closing, suppress

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from support.in_thread import asked, reading_nothing, served

from cactus_decoding.engines.openai import serving
from cactus_decoding.engines.openai.serving import RequestQueue, StreamedResponse, TimedConnection

PART, PARTS = b"x" * 2**16, 8  # more than the system is told to hold for a reader


class Streamed:
    """An application with one seat, of whose answers one is long."""

    def __init__(self) -> None:
        self.queue = RequestQueue(1)
        self.app = Starlette(routes=[Route("/", self.answer), Route("/at-once", self.at_once)])

    async def answer(self, request: Request) -> StreamedResponse:
        return StreamedResponse(self.parts(), "text/plain")

    async def at_once(self, request: Request) -> PlainTextResponse:
        return PlainTextResponse(PARTS * PART)

    async def parts(self):
        with self.queue.join() as place:
            async for _ in place.ahead():
                pass
            for _ in range(PARTS):
                yield PART


def test_who_reads_nothing_keeps_no_seat():
    streamed = Streamed()
    with served(streamed.app, sent_bytes=4096) as port, closing(reading_nothing(port, "GET", "/")):
        status, text = asked(port, "GET", "/")
        assert (status, len(text)) == (200, PARTS * len(PART))
        assert not streamed.queue._places


@pytest.mark.parametrize("path", ["/", "/at-once"])
def test_a_connection_ends_whose_reader_takes_nothing(monkeypatch, path):
    ended, lost = threading.Event(), TimedConnection.connection_lost

    def noted(*arguments):
        lost(*arguments)
        ended.set()

    monkeypatch.setattr(serving, "WRITE_SECONDS", 0.2)
    monkeypatch.setattr(TimedConnection, "connection_lost", noted)
    with served(Streamed().app, sent_bytes=4096) as port, closing(reading_nothing(port, "GET", path)) as connection:
        assert ended.wait(60)
        received = 0
        with suppress(ConnectionResetError):
            while part := connection.recv(2**16):
                received += len(part)
        assert received < PARTS * len(PART)


def test_who_reads_slowly_gets_everything():
    with served(Streamed().app, sent_bytes=4096) as port, closing(reading_nothing(port, "GET", "/")) as connection:
        received = b""
        while not received.endswith(b"0\r\n\r\n"):
            received += connection.recv(2**13)
        assert received.count(b"x") >= PARTS * len(PART)


def test_what_fails_is_said_before_the_first_part_and_cuts_the_answer_after_it():
    async def fails(parts):
        for _ in range(parts):
            yield PART
        raise ValueError("no more")

    async def answer(request):
        return StreamedResponse(fails(request.path_params["parts"]), "text/plain")

    told = {ValueError: lambda request, error: PlainTextResponse(str(error), 400)}
    app = Starlette(routes=[Route("/{parts:int}", answer)], exception_handlers=told)
    with served(app) as port:
        assert asked(port, "GET", "/0") == (400, "no more")
        assert asked(port, "GET", "/2") == (0, 2 * PART.decode())
