"""A process that tries grammars out, so that one that never ends, or ends its process, does no harm."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from typing import Any

from cactus_decoding.core.constraints import compiling
from cactus_decoding.core.constraints.grammar import Grammar

SECONDS = 5.0
"""That a grammar may take."""
_START_SECONDS = 60.0
_KEPT = 64


class GrammarWorker:
    """Tries grammars out in a process of its own, which is ended where one takes too long.

    Only what could be compiled there is compiled here. A process is kept for the next grammar; a new one starts when it
    is needed.

    Args:
        vocabulary: of the model.
        seconds: that a grammar may take.
    """

    def __init__(self, vocabulary: compiling.Vocabulary, seconds: float = SECONDS) -> None:
        self._seconds = seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._vocabulary = json.dumps(
            {
                "tokens": [token.decode("latin-1") for token in vocabulary.tokens],
                "special": vocabulary.special_token_ids,
                "ends": vocabulary.ends,
            }
        ).encode()
        self._tried: OrderedDict[Grammar, str] = OrderedDict()
        self._lock, self._closed = threading.Lock(), False

    def known(self, grammar: Grammar) -> str | None:
        """Return what `check` returned for a grammar, without waiting for another one; None where it is not kept."""
        return self._tried.get(grammar)

    def start(self) -> None:
        """Start the process, so that the first grammar does not wait for it."""
        with self._lock:
            self._started()

    def check(self, grammar: Grammar) -> str:
        """Return a grammar in llguidance's own form, after it was compiled and tried.

        Raises:
            ValueError: with the grammar's name, for one that cannot be read or takes too long.
        """
        with self._lock:
            if grammar in self._tried:
                self._tried.move_to_end(grammar)
                return self._tried[grammar]
            try:
                compiled = self._try(grammar)
            except ValueError as error:
                for part in grammar.parts:
                    try:
                        self._try(part)
                    except ValueError as theirs:
                        raise ValueError(f"cannot read {part.name}: {theirs}") from None
                raise ValueError(f"cannot read {grammar.name}: {error}") from None
            self._tried[grammar] = compiled
            if len(self._tried) > _KEPT:
                self._tried.popitem(last=False)
            return compiled

    def close(self) -> None:
        """End the process."""
        self._closed = True  # a check that runs is not waited for: it fails
        self._end()

    def _try(self, grammar: Grammar) -> str:
        process = self._started()
        asked = {"kind": grammar.kind, "text": grammar.text, "seconds": self._seconds}
        reply = self._ask(process, asked, self._seconds)
        if reply is None:
            late = process.poll() is None
            self._end()
            raise ValueError(
                f"it takes longer than {self._seconds:g} seconds to compile"
                if late
                else "it needs more memory, or nests more deeply, than is allowed"
            )
        if "error" in reply:
            raise ValueError(reply["error"])
        return str(reply["grammar"])

    def _started(self) -> subprocess.Popen[bytes]:
        if self._closed:
            raise ValueError("the server stops")
        if self._process is None or self._process.poll() is not None:
            self._end()
            command = [sys.executable, "-P", str(Path(compiling.__file__))]
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
            if self._ask(self._process, self._vocabulary, _START_SECONDS) is None:
                self._end()
                raise RuntimeError("the process that compiles grammars does not start")
        return self._process

    def _ask(self, process: subprocess.Popen[bytes], message: Any, seconds: float) -> dict[str, Any] | None:
        """Send a line and return the reply; None where the process has ended, or does not reply in time."""
        assert process.stdin is not None
        assert process.stdout is not None
        line = message if isinstance(message, bytes) else json.dumps(message).encode()
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
        except (OSError, ValueError, subprocess.TimeoutExpired):
            return None
        return dict(json.loads(reply))

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
