"""Ctrl-C that waits while something must be done as a whole."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def interruptions_held() -> Iterator[None]:
    """Let Ctrl-C wait until the block is done.

    Only the main thread is ever interrupted, so that in another one there is nothing to hold back; nor is there where
    Ctrl-C ends the process, or is ignored.

    Example:
        >>> done = []
        >>> try:
        ...     with interruptions_held():
        ...         signal.raise_signal(signal.SIGINT)
        ...         done.append("the whole")
        ... except KeyboardInterrupt:
        ...     done.append("interrupted")
        >>> done
        ['the whole', 'interrupted']
    """
    before: Any = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    caught: list[tuple[Any, ...]] = []
    signal.signal(signal.SIGINT, lambda *given: caught.append(given))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if caught:
            before(*caught[0])
