"""How a server starts and ends."""

from __future__ import annotations

import socket

import uvicorn
from starlette.types import ASGIApp


def address_of(host: str, listening: socket.socket) -> str:
    """Return the address of a server that listens."""
    return f"http://{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}/"


def server_of(application: ASGIApp) -> uvicorn.Server:
    """Return a server for the application that leaves the console to others and ends within seconds."""
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
    """Return a socket that listens; raise `ValueError` with the reason if there is none to be had."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        raise ValueError(f"cannot listen on {host}:{port}: {error.strerror or error}") from None
