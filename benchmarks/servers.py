"""Servers of the same files, ours and llama.cpp's, that run for a benchmark and are asked in the same way."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CACTUS = [sys.executable, "-c", "from cactus_decoding.cli import main; raise SystemExit(main())", "serve"]


@dataclass
class Answer:
    """What a request was answered; times are in seconds from when it was sent."""

    status: int = 0
    text: str = ""
    finish_reason: str | None = None  # None where the answer has none
    tokens: int = 0  # by the server's count
    first: float = 0.0  # until the first text, or a reason for none
    seconds: float = 0.0
    first_processor: float = 0.0  # of the server, whoever it served
    processor: float = 0.0
    extra: dict[str, Any] = field(default_factory=dict)  # counts and times that servers tell besides


@dataclass
class Server:
    """One that runs: its process, its port, and how long it took until it answered."""

    process: subprocess.Popen[str]
    port: int
    seconds: float = 0.0

    def processor_seconds(self) -> float:
        """Return what it has used so far, to a tick of usually 10 ms."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def resident_bytes(self) -> int:
        """Return its memory that is not in files."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return 1024 * int(next(line for line in status.splitlines() if line.startswith("RssAnon")).split()[1])

    @contextmanager
    def _asked(self, how: str, path: str, body: Any = None, timeout: float = 600) -> Iterator[http.client.HTTPResponse]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        text = None if body is None else json.dumps(body)
        try:
            connection.request(how, path, text, {"Content-Type": "application/json"})
            with connection.getresponse() as response:
                yield response
        finally:
            connection.close()

    def answers(self) -> bool:
        """Say whether it does."""
        try:
            with self._asked("GET", "/health", timeout=10) as response:
                return response.status == 200
        except OSError:
            return False

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Return what a request is answered as a whole."""
        with self._asked("POST", path, body) as response:
            return dict(json.loads(response.read()))

    def chat(self, body: dict[str, Any], leave_after: int | None = None) -> Answer:
        """Stream a conversation's answer; go away after so many parts."""
        answer, before, began = Answer(), self.processor_seconds(), time.perf_counter()
        body = {"stream": True, "stream_options": {"include_usage": True}} | body
        with self._asked("POST", "/v1/chat/completions", body) as response:
            answer.status, parts = response.status, 0
            if answer.status != 200:
                answer.extra["refused"] = response.read().decode(errors="replace")
            for line in response:
                if not line.startswith(b"data: {"):
                    continue
                event = json.loads(line.removeprefix(b"data: "))
                for choice in event.get("choices", []):
                    called = choice["delta"].get("tool_calls") or []
                    text = choice["delta"].get("content") or ""
                    text += "".join(call["function"].get("arguments", "") for call in called)
                    if (text or choice["finish_reason"]) and not answer.first:
                        answer.first = time.perf_counter() - began
                        answer.first_processor = self.processor_seconds() - before
                    answer.text, parts = answer.text + text, parts + bool(text)
                    answer.finish_reason = choice["finish_reason"] or answer.finish_reason
                answer.tokens = (event.get("usage") or {}).get("completion_tokens", answer.tokens)
                answer.extra |= {name: event[name] for name in ("timings", "metrics", "error") if name in event}
                if leave_after is not None and parts >= leave_after:
                    break
        answer.seconds = time.perf_counter() - began
        answer.processor = self.processor_seconds() - before
        return answer


@contextmanager
def running(
    command: Sequence[str], wait: float = 1800.0, environment: Mapping[str, str] | None = None
) -> Iterator[Server]:
    """Run a server to which a free port is added, and yield it as soon as it answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryFile("w+") as log:
        began = time.perf_counter()
        variables = os.environ | (environment or {})
        asked = [*command, "--port", str(port)]
        process = subprocess.Popen(asked, stdout=log, stderr=log, text=True, env=variables)
        server = Server(process, port)
        try:
            while not server.answers():
                if process.poll() is not None or time.perf_counter() - began > wait:
                    log.seek(0)
                    raise RuntimeError(f"{command[0]} does not answer: {log.read()[-2000:]}")
                time.sleep(0.1)
            server.seconds = time.perf_counter() - began
            yield server
        finally:
            process.terminate()
            process.wait()


def cactus(target: str, draft: str, *options: str) -> list[str]:
    """Return the command of our server."""
    return [*CACTUS, "--engine", "llama-cpp", target, "--draft", draft, *options]


def llama_server(
    binary: Path, target: Path, draft: Path | None, threads: int, context: int, *options: str
) -> list[str]:
    """Return the command of llama.cpp's server, with a draft model or none."""
    command = [str(binary), "-m", str(target), "-c", str(context), "-np", "1", "--no-webui", "-t", str(threads)]
    command += ["-tb", str(threads)]
    if draft is not None:
        command += ["--spec-type", "draft-simple", "-md", str(draft), "-td", str(threads), "-tbd", str(threads)]
    return [*command, *options]
