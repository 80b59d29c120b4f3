"""A process that does what may never end, or end its process, so that it does no harm here.

One such process runs this file itself: it renders chat templates, without torch.
"""

from __future__ import annotations

import json
import math
import os
import select
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

_START_SECONDS = 60.0
MEMORY = 2**29  # bytes that a template may take


class WorkerProcess:
    """Asks a process of its own, which is ended where a reply takes too long; the next one starts when it is needed.

    Its script replies to lines of JSON by lines of JSON, one after another; to the first, that it has started.
    """

    def __init__(self, script: str | Path, first: bytes, purpose: str) -> None:
        self._script, self._first, self._purpose = script, first, purpose
        self._process: subprocess.Popen[bytes] | None = None
        self._lock, self._closed = threading.RLock(), False

    def start(self) -> None:
        """Start the process, so that whoever asks first does not wait for it."""
        with self._lock:
            self._started()

    def ask(self, message: object, seconds: float) -> dict[str, Any]:
        with self._lock:
            process = self._started()
            reply = self._ask(process, json.dumps(message).encode(), seconds)
            if reply is None:
                late = process.poll() is None
                self._end()
                raise TimeoutError if late else ChildProcessError
            return reply

    def text(self, message: object, seconds: float, key: str, doing: str = "") -> str:
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
            if self._ask(self._process, self._first, _START_SECONDS) is None:
                self._end()
                raise RuntimeError(f"the process that {self._purpose} does not start")
        return self._process

    def _ask(self, process: subprocess.Popen[bytes], line: bytes, seconds: float) -> dict[str, Any] | None:
        """Send a line and return the reply; None where the process has ended, or does not reply in time."""
        assert process.stdin is not None
        assert process.stdout is not None
        deadline, reply = time.monotonic() + seconds, b""
        try:
            process.stdin.write(line + b"\n")  # which it reads first, whatever its length
            process.stdin.flush()
            while not reply.endswith(b"\n"):
                left = deadline - time.monotonic()
                if left <= 0 or not select.select([process.stdout], [], [], left)[0]:
                    return None
                part = os.read(process.stdout.fileno(), 2**16)
                if not part:
                    process.wait(1)
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


def rendered(asked: dict[str, Any]) -> dict[str, str]:
    from transformers.utils.chat_template_utils import render_jinja_template

    try:
        texts, _ = render_jinja_template([asked["conversation"]], chat_template=asked["template"], **asked["options"])
        text = str(texts[0])
        if len(text) > asked["most"]:
            return {"error": f"it writes {len(text):,} characters, of which {asked['most']:,} are allowed"}
        return {"text": text}
    except MemoryError:
        return {"error": "it needs more memory than is allowed"}
    except Exception as error:  # templates are programs, and raise what they like
        return {"error": str(error) or type(error).__name__}


def limit_memory() -> None:
    """Let this process take `MEMORY` more than it has, where the system can see to that."""
    try:
        import resource

        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (size, size))
    except (ImportError, ValueError, OSError):  # such as on Windows, or under a smaller limit
        pass


def render_templates() -> None:
    """Answer lines of JSON from stdin: first an empty object, and then conversations, one at a time."""
    sys.modules["torch"] = None  # type: ignore[assignment]  # which takes seconds to import, and renders nothing
    import transformers.utils.chat_template_utils  # noqa: F401  # so that no template waits for it

    limit_memory()
    for number, line in enumerate(sys.stdin.buffer):
        if number == 0:
            reply: dict[str, Any] = {"ready": True}
        else:
            asked = json.loads(line)
            if hasattr(signal, "alarm"):
                signal.alarm(math.ceil(asked["seconds"]) + 5)  # where nobody is there to end this process
            reply = rendered(asked)
            if hasattr(signal, "alarm"):
                signal.alarm(0)
        sys.stdout.buffer.write(json.dumps(reply).encode() + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    render_templates()
