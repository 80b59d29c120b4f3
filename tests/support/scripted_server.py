"""A small OpenAI-compatible server over real HTTP, whose answers and faults a test decides."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Events = Sequence[object]
Script = Callable[[str, dict[str, Any]], "tuple[int, object] | Events"]
"""``(path, body)`` to the events of a stream, or to a status and a body; an event of None cuts the connection."""


def events(text: str, *, usage: dict[str, Any] | None = None, **more: object) -> list[object]:
    """Return the events of a completion's stream, word by word."""
    parts = [{"choices": [{"text": part, "finish_reason": None}]} for part in text.split(" ")]
    end = {"choices": [{"text": "", "finish_reason": "stop"}]}
    return [*parts, end, {"choices": [], "usage": usage or {"completion_tokens": len(parts)}} | more, "[DONE]"]


@contextmanager
def scripted(script: Script, models: object = None) -> Iterator[str]:
    """Serve what a script says, and yield the address; by default one model is listed."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *given: object) -> None:
            pass

        def do_GET(self) -> None:
            self._say(200, {"data": [{"id": "tiny"}]} if models is None else models)

        def handle_one_request(self) -> None:
            with suppress(ConnectionError):  # whoever asked has left: a traceback would stand in a command's output
                super().handle_one_request()

        def do_POST(self) -> None:
            answer = script(self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            if isinstance(answer, tuple):
                return self._say(*answer)
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            for event in answer:
                if event is None:
                    return self.connection.close()
                text = event if isinstance(event, str) else json.dumps(event)
                self.wfile.write(f"data: {text}\n\n".encode())
            return None

        def _say(self, status: int, body: object) -> None:
            data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/html" if isinstance(body, str) else "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
