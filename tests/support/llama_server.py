"""`cactus serve --engine llama-cpp` as a process of its own, and how to ask it."""

from __future__ import annotations

import http.client
import json
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from cactus_decoding.engines.llama_cpp.models.settings import parse_gguf
from cactus_decoding.engines.llama_cpp.pairs import PairPool
from cactus_decoding.engines.llama_cpp.server.server import LlamaServer
from support.command_line import process
from support.counted import counted
from support.in_thread import served
from support.patience import PATIENCE


@dataclass
class LlamaServerProcess:
    process: subprocess.Popen[str]
    port: int
    log: TextIO
    address: str = "127.0.0.1"

    def connect(
        self, method: str, path: str, body: object = None, key: str | None = None
    ) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection(self.address, self.port, timeout=PATIENCE)
        headers = {} if body is None else {"Content-Type": "application/json"}
        if key is not None:
            headers["Authorization"] = f"Bearer {key}"
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection.request(method, path, data, headers)
        return connection

    def ask(self, method: str, path: str, body: object = None, key: str | None = None) -> tuple[int, Any]:
        connection = self.connect(method, path, body, key)
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        return response.status, json.loads(text) if "json" in (response.getheader("content-type") or "") else text

    def complete(self, **body: object) -> tuple[int, Any]:
        return self.ask("POST", "/v1/completions", body)

    def stream(self, **body: object) -> Iterator[dict]:
        """Yield the events of a stream; leaving closes the connection."""
        connection = self.connect("POST", "/v1/completions", body | {"stream": True})
        try:
            yield from events_of(connection.getresponse())
        finally:
            connection.close()

    def resident_bytes(self) -> int:
        """Memory of the process that is not in its own files only."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return 1024 * int(next(line for line in status.splitlines() if line.startswith("RssAnon")).split()[1])

    def logged(self) -> str:
        self.log.seek(0)
        return self.log.read()

    def counted(self, name: str) -> dict[str, float]:
        return {rule: values[name] for rule, values in counted(self.ask("GET", "/metrics")[1]).items()}


def events_of(response: http.client.HTTPResponse) -> Iterator[dict]:
    for line in iter(response.readline, b""):
        if line.startswith(b"data: ") and line.strip() != b"data: [DONE]":
            yield json.loads(line.removeprefix(b"data: "))


@contextmanager
def serving(*arguments: str) -> Iterator[LlamaServerProcess]:
    """Serve until the block ends; the arguments are those of the command."""
    with (
        tempfile.TemporaryFile("w+") as log,  # a pipe that nobody reads would stop the server once it is full
        process("serve", "--engine", "llama-cpp", *arguments, stderr=log) as running,
    ):
        announced = running.stdout.readline()
        log.seek(0)
        assert announced.startswith("cactus serve: http://"), announced + log.read()
        try:
            yield LlamaServerProcess(running, int(announced.split("/v1")[0].rpartition(":")[2]), log)
        finally:
            if running.poll() is None:
                running.terminate()
                running.wait(PATIENCE)


@contextmanager
def serving_here(
    target: Path, draft: Path, parallel: int = 1, sent_bytes: int | None = None
) -> Iterator[tuple[LlamaServer, PairPool, int]]:
    """Serve in a thread of this process until the block ends, in float32; yield the port too."""
    file = parse_gguf(f"{target}:cache=float32,context_size=512,threads=1")
    pool = PairPool.load(file, f"{draft}:cache=float32", parallel, kept_prompts=4)
    server = LlamaServer(pool, "m", {"rule": "cactus:delta=1", "num_speculative_tokens": 4}, 16)
    server.get_ready(lambda: None)
    try:
        with served(server.application(None, []), sent_bytes=sent_bytes) as port:
            yield server, pool, port
    finally:
        server.stop()
