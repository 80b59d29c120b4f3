"""Versions of llama-cpp-python: those that were tried, and a check of newer ones in a process of its own.

`python -m cactus_decoding.engines.llama_cpp.models.compatibility` prints what the check finds, if anything.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from packaging.version import Version

from cactus_decoding.engines.llama_cpp.models import library

MODEL = Path(__file__).with_name("check.gguf")
"""Random weights and 32 tokens; ``scripts/llama_cpp_check_model.py`` writes it."""
LIKELIEST = [12, 12, 9, 7, 7, 22, 18, 12, 11, 31, 0, 2]
"""The likeliest token after each of those that the check reads, by the versions that were tried."""
TOLERANCE = 1e-4  # how far rows may be apart, relative to how far they are spread; measured: 7e-7
_SECONDS, _WALL_SECONDS = 60, 600  # of processor time, and by the clock
_LOCK = threading.Lock()
_passed: set[str] = set()


def check_llama_cpp() -> None:
    """Check a version of llama-cpp-python that is newer than those in `library.TRIED`, once; warn where it passes.

    Names and signatures are compared here, for every version. Numbers are compared in another process, because reading
    memory whose layout has changed can end a process.
    """
    library.library()
    version, newest = library.installed_version(), library.TRIED[-1]
    with _LOCK:
        if Version(version) <= Version(newest) or version in _passed:
            return
        if problem := _problem_elsewhere():
            raise ValueError(library.refusal(version, problem))
        _passed.add(version)
    warnings.warn(
        f"llama-cpp-python {version} is newer than {newest}, the newest version that was tried; it passed the check",
        stacklevel=2,
    )


def _problem_elsewhere() -> str | None:
    """Run the check in a process of its own; return what it finds, or how it ends."""
    command = [sys.executable, "-c", f"from {__name__} import main; main()"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=_WALL_SECONDS)
    except subprocess.TimeoutExpired:
        return f"a process that reads a small model with it has not ended after {_WALL_SECONDS} seconds"
    if done.returncode != 0:
        return f"a process that reads a small model with it ends with exit code {done.returncode}"
    return done.stdout.strip() or None


def main() -> None:
    signal.setitimer(signal.ITIMER_PROF, _SECONDS)
    try:
        print(changed_numbers() or "")
    except Exception as error:  # whatever has changed
        print(f"a small model cannot be read and taken back ({type(error).__name__}: {error})")


def changed_numbers() -> str | None:
    """Compare rows of a small model that are read with a cache with those read without; return what differs."""
    model = library.load_handle(str(MODEL), 0, False)
    vocab, width, *_ = library.describe(model)
    words, tokens = library.words(vocab, width), library.tokenize(vocab, "aba", True)
    if (tokens, words.special, library.end_tokens(vocab, width)) != ([1, 31, 6, 5], [0, 1, 2], [2]):
        return f"it reads 'aba' as the tokens {tokens}, and calls {words.special} special"
    numbers = np.arange(1, 13) * 5 % width
    whole = _Text(model, width).read(numbers, 0)
    if (likeliest := whole.argmax(-1).tolist()) != LIKELIEST:
        return f"the likeliest tokens after a text are {likeliest}, where they are {LIKELIEST}"
    text = _Text(model, width)
    begun = text.read(numbers[:8], 0)
    saved = library.save_state(text.context, 0)
    text.read(numbers[2:5], 8)
    if not library.forget(text.memory, 0, 8):
        return "it does not take tokens back"
    taken_back = np.concatenate([begun, text.read(numbers[8:9], 8), text.read(numbers[9:], 9)])
    library.forget(text.memory, 0, -1)
    library.restore_state(text.context, 0, saved)
    restored = np.concatenate([begun, text.read(numbers[8:], 8)])
    library.forget(text.memory, 0, 8)
    library.branch_off(text.memory, 1)
    branched = np.concatenate([begun, text.read(numbers[8:], 8, 1)])
    spread = (whole - whole.mean(-1, keepdims=True)).std()
    difference = max(float(abs(rows - whole).max() / spread) for rows in (taken_back, restored, branched))
    if difference <= TOLERANCE:  # also where it is no number
        return None
    return f"rows read with a cache differ from rows read without by {difference:.1e}, where {TOLERANCE:.0e} is allowed"


class _Text:
    def __init__(self, model: int, width: int) -> None:
        self.context, self._width = library.make_context(model, 64, 1, 1, "float32", 0, 1), width
        self.memory = library.room(self.context)[0] or 0
        self._batch, self._sequences = library.Batch(16), np.arange(2, dtype=np.int32)

    def read(self, token_ids: np.ndarray[Any, Any], start: int, branch: int = 0) -> np.ndarray[Any, Any]:
        """Return a copy of the logits after each token, ``[tokens, vocabulary]``."""
        count, batch = len(token_ids), self._batch
        batch.tokens[:count], batch.positions[:count] = token_ids, np.arange(start, start + count)
        batch.wanted[:count], batch.sequence_of[:count] = 1, self._sequences[branch:].ctypes.data
        if wrong := batch.read(self.context, count):
            raise RuntimeError(f"{count} tokens after {start} {wrong}")
        return library.logits(self.context, count, self._width).copy()
