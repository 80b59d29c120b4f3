"""Interruptions at any line that a run passes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from types import FrameType
from typing import Any


def raise_interrupt() -> None:
    """Interrupt at once, unlike the signal, which waits where it is held back."""
    raise KeyboardInterrupt


def lines_of(
    run: Callable[[], object], files: Collection[str], strike: int = 0, interrupt: Callable[[], None] = raise_interrupt
) -> int:
    """Run something, interrupt it at the given one of the lines that it passes in files; return how many these are."""
    passed = 0

    def local(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal passed
        if event == "line":
            passed += 1
            if passed == strike:
                interrupt()
        return local

    before = sys.gettrace()
    sys.settrace(lambda frame, event, arg: local if frame.f_code.co_filename in files else None)
    try:
        run()
    finally:
        sys.settrace(before)
    return passed
