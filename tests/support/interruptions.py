"""Interruptions at any line that a run passes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from types import FrameType
from typing import Any


def raise_interrupt() -> None:
    """Interrupt at once, unlike the signal, which waits where it is held back."""
    raise KeyboardInterrupt


def interrupt_when(is_time: Callable[..., bool]) -> Callable[..., None]:
    """Return a report of progress that interrupts where something is so of it."""

    def report(*progress: object) -> None:
        if is_time(*progress):
            raise_interrupt()

    return report


def lines_of(
    run: Callable[[], object], files: Collection[str], strike: int = 0, interrupt: Callable[[], None] = raise_interrupt
) -> int:
    """Run something, interrupt it at the given one of the lines that it passes in files; return how many these are."""
    return len(passed(run, files, strike, interrupt))


def strikes_of(run: Callable[[], object], files: Collection[str]) -> list[int]:
    """Run something, and return at which of the lines that it passes to interrupt it: each line's first and last."""
    places: dict[tuple[str, int], list[int]] = {}
    for number, place in enumerate(passed(run, files), start=1):
        places.setdefault(place, []).append(number)
    return sorted({each for numbers in places.values() for each in (numbers[0], numbers[-1])})


def passed(
    run: Callable[[], object], files: Collection[str], strike: int = 0, interrupt: Callable[[], None] = raise_interrupt
) -> list[tuple[str, int]]:
    """Return the lines that a run passes in files, interrupted at one of them if that is asked for."""
    lines: list[tuple[str, int]] = []

    def local(frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line":
            lines.append((frame.f_code.co_filename, frame.f_lineno))
            if len(lines) == strike:
                interrupt()
        return local

    before = sys.gettrace()
    sys.settrace(lambda frame, event, arg: local if frame.f_code.co_filename in files else None)
    try:
        run()
    finally:
        sys.settrace(before)
    return lines
