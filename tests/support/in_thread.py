"""Applications served in a thread of this process, where faults can be injected, and raw ways to ask them."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress

from starlette.types import ASGIApp

from cactus_decoding.engines.openai.serving import listen, server_of


@contextmanager
def served(application: ASGIApp, *, sent_bytes: int | None = None) -> Iterator[int]:
    """Serve on a free port, which is yielded, until the block ends; the system may hold so few bytes to be sent."""
    with listen("127.0.0.1", 0) as listening:
        if sent_bytes is not None:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, sent_bytes)
        server = server_of(application)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        try:
            yield listening.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join(20)
            assert not thread.is_alive()


def begun(port: int, method: str, path: str, body: object = None) -> http.client.HTTPConnection:
    """Send a request, and return the connection, of which nothing is read yet."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    connection.request(method, path, data, {} if body is None else {"Content-Type": "application/json"})
    return connection


def asked(port: int, method: str, path: str, body: object = None) -> tuple[int, str]:
    """Return a response's status and text; of one that is cut short what came of it, and 0."""
    with closing(begun(port, method, path, body)) as connection:
        response = connection.getresponse()
        try:
            return response.status, response.read().decode()
        except http.client.IncompleteRead as error:
            return 0, error.partial.decode()


def reading_nothing(port: int, method: str, path: str, body: object = None) -> socket.socket:
    """Send a request, and return the connection, of whose answer only the beginning is read when there is one."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(60)
    connection.connect(("127.0.0.1", port))
    connection.sendall(_request(method, path, body))
    assert connection.recv(4) == b"HTTP"
    return connection


def leave_after(lines: int, port: int, method: str, path: str, body: object = None) -> None:
    """Send a request, read so many lines of the answer, and leave."""
    with closing(begun(port, method, path, body)) as connection:
        if lines:
            with closing(connection.getresponse()) as response:
                for _ in range(lines):
                    response.readline()


def leave_within(part: int, port: int, method: str, path: str, body: object = None) -> None:
    """Send the first bytes of a request, and leave."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(_request(method, path, body)[:part])


def _request(method: str, path: str, body: object) -> bytes:
    data = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data


def wait_until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)
