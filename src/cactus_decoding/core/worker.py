"""A process that does what may never end, or end its process, so that it does no harm here."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

WALL_SECONDS = 300.0
"""How long a reply may take by the clock. Work is limited by processor time, so that no busy machine comes near."""


class WorkerProcess:
    """Asks a process of its own, which ends where a reply takes too much; the next one starts when it is needed.

    Its script replies to lines of JSON by lines of JSON, one after another; to the first, that it has started. The
    others hold ``seconds`` of processor time, after which it has the system end it (``setitimer`` of ``ITIMER_PROF``).
    """

    def __init__(self, script: str | Path, first: bytes, purpose: str) -> None:
        self._script, self._first, self._purpose = script, first, purpose
        self._process: subprocess.Popen[bytes] | None = None
        self._lock, self._closed = threading.RLock(), False

    def start(self) -> None:
        """Start the process, so that whoever asks first does not wait for it."""
        with self._lock:
            self._started()

    def ask(self, message: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        with self._lock:
            process = self._started()
            reply = self._ask(process, json.dumps({**message, "seconds": seconds}).encode())
            if reply is None:
                late = process.poll() in (None, -signal.SIGPROF)
                self._end()
                raise TimeoutError if late else ChildProcessError
            return reply

    def text(self, message: Mapping[str, Any], seconds: float, key: str, doing: str = "") -> str:
        """Return a text of the reply, by its key; raise `ValueError` that says why there is none."""
        try:
            reply = self.ask(message, seconds)
        except TimeoutError:
            raise ValueError(f"it takes longer than {seconds:g} seconds{doing}") from None
        except ChildProcessError:
            raise ValueError("it needs more memory, or nests more deeply, than is allowed") from None
        if "error" in reply:
            raise ValueError(reply["error"])
        return str(reply[key])

    def close(self) -> None:
        self._closed = True  # who asks just now is not waited for: that fails
        self._end()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._closed:
            raise ValueError("the server stops")
        if self._process is None or self._process.poll() is not None:
            self._end()
            command = [sys.executable, "-P", str(self._script)]
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
            if self._ask(self._process, self._first) is None:
                self._end()
                raise RuntimeError(f"the process that {self._purpose} does not start")
        return self._process

    def _ask(self, process: subprocess.Popen[bytes], line: bytes) -> dict[str, Any] | None:
        """Send a line and return the reply; None where the process has ended, or does not reply in time."""
        assert process.stdin is not None
        assert process.stdout is not None
        deadline, reply = time.monotonic() + WALL_SECONDS, b""
        try:
            process.stdin.write(line + b"\n")  # which it reads first, whatever its length
            process.stdin.flush()
            while not reply.endswith(b"\n"):
                left = deadline - time.monotonic()
                if left <= 0 or not select.select([process.stdout], [], [], left)[0]:
                    return None
                part = os.read(process.stdout.fileno(), 2**16)
                if not part:
                    process.wait(max(deadline - time.monotonic(), 0))
                    return None
                reply += part
            return dict(json.loads(reply))
        except json.JSONDecodeError as error:
            self._end()
            raise RuntimeError(f"the process that {self._purpose} replies by no JSON") from error
        except (OSError, ValueError, subprocess.TimeoutExpired):
            return None
        except BaseException:
            self._end()  # whoever asks next must not get what it still replies
            raise

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(OSError):
            process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            with suppress(OSError):
                if pipe is not None:
                    pipe.close()
