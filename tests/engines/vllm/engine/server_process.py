"""Servers as users start them, in processes of their own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import openai
from engine_run import ENGINE_ENVIRONMENT
from mixed_load import MODEL, QUESTIONS

SMALL = ("--enforce-eager", "--max-model-len=256", "--max-num-seqs=64", "--gpu-memory-utilization=0.2")
SMALL += ("--dtype=float32", "--generation-config=vllm", "--host=127.0.0.1")
"""Options that make a server small and its arithmetic repeatable."""
TALKATIVE = {"VLLM_LOGGING_LEVEL": "INFO"}
"""What vLLM logs by itself; engines of other tests have this process ask for less."""
SECONDS = 600


@dataclass
class Server:
    """`cactus serve`, where it listens and what it writes."""

    process: subprocess.Popen
    port: int
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def wait(self) -> Server:
        """Wait until it answers; fail with the end of its log if it ends instead."""
        end = time.monotonic() + SECONDS
        while time.monotonic() < end and self.process.poll() is None:
            try:
                urllib.request.urlopen(f"{self.url}/health", timeout=5).close()
                return self
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                time.sleep(0.5)
        raise AssertionError(f"the server did not start:\n{self.log.read_text()[-6000:]}")

    def metrics(self) -> dict[str, float]:
        text = urllib.request.urlopen(f"{self.url}/metrics", timeout=SECONDS).read().decode()
        lines = [line.rpartition(" ") for line in text.splitlines() if line and not line.startswith("#")]
        return {name: float(value) for name, _, value in lines}


@contextmanager
def serving(folder: Path, *arguments: str, **environment: str):
    """Start `cactus serve` on the bundled pair, and end it at the end."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = folder / f"server-{port}.log"
    command = [sys.executable, "-c", "import sys; from cactus_decoding.cli import main; sys.exit(main())", "serve"]
    with log.open("w") as output:
        process = subprocess.Popen(
            [*command, *arguments, *SMALL, f"--port={port}"],
            env=os.environ | ENGINE_ENVIRONMENT | TALKATIVE | environment,
            stdout=output,
            stderr=output,
        )
    try:
        yield Server(process, port, log)
    finally:
        sessions = children_of(process.pid)
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=SECONDS)
        left = [each for session in sessions for each in of_session(session)]
        assert left == [], "one signal ends a server with all that it has started"


def children_of(process: int) -> list[int]:
    with suppress(OSError):  # it has ended
        return [int(each) for each in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    return []


def of_session(session: int) -> list[int]:
    """Return the processes of a session that have not ended."""
    found = []
    for each in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # ended since
            state, _, _, theirs = each.read_text().rpartition(") ")[2].split()[:4]
            if int(theirs) == session and state != "Z":
                found.append(int(each.parent.name))
    return found


def hand_on(url: str) -> None:
    """Have the worker hand its sums on, which it does in steps that are a second or more after the last time."""
    time.sleep(1.1)
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=280) as client:
        spare = {"acceptance_rule": "lenience:lenience=0.9"}
        client.completions.create(model=MODEL, prompt=QUESTIONS[0], max_tokens=8, extra_body={"vllm_xargs": spare})
