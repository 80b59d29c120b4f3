"""An OpenAI-compatible server over the tiny models of conformance tests: real HTTP, and any engine behind it."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from cactus_conform.engine import Engine, Query, Sampling
from cactus_conform.models import text_of, tokens_of

KNOWN = {"temperature", "top_k", "top_p", "min_p", "presence_penalty", "frequency_penalty", "max_tokens"}


@contextmanager
def tiny_server(
    engine: Engine, *, wait: float = 0.0, spoil: Callable[[str], str] = lambda text: text, draft: str = "bad"
) -> Iterator[str]:
    """Serve an engine, and yield the address; it refuses repetition penalties and biases.

    Before each answer it waits for some seconds, and it spoils its text.
    """
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *given: object) -> None:
            pass

        def do_GET(self) -> None:
            self._say(200, {"data": [{"id": "tiny"}]})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            time.sleep(wait)
            if refused := set(body) - KNOWN - {"model", "prompt", "seed", "stream", "stop"}:
                self._say(400, {"error": f"unknown: {refused}"})
                return
            stop = tuple(tokens_of("".join(body.get("stop", ()))))
            given = {name: body[name] for name in KNOWN & set(body)}
            sampling = Sampling(draft=draft, stop_token_ids=stop, **given)
            with lock:
                [answer] = engine.answer([Query(tuple(tokens_of(body["prompt"])), sampling, body["seed"])])
            ended = answer.token_ids[-1] in sampling.ends
            text = spoil(text_of(answer.token_ids[: len(answer.token_ids) - ended]))
            self._say(200, {"choices": [{"text": text, "finish_reason": "stop" if ended else "length"}]})

        def _say(self, status: int, body: object) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    class Server(ThreadingHTTPServer):
        def handle_error(self, *given: object) -> None:
            """Say nothing of clients that have left."""

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
