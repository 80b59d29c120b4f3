"""Progress on stderr: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

LINES = 10
"""How many lines a whole run writes where there is no terminal, at least."""
SECONDS = 60
"""After so long without a line there is another one."""
AT_ONCE = 0.005
"""What is done so soon after another was done before."""


def about(seconds: float) -> str:
    """Return a time for people.

    Example:
        >>> about(50), about(1000), about(12000)
        ('about 1 min', 'about 17 min', 'about 3 h 20 min')
    """
    minutes = max(1, round(seconds / 60))
    return f"about {minutes} min" if minutes < 100 else f"about {minutes // 60} h {minutes % 60:02d} min"


@contextmanager
def counting(what: str, total: int) -> Iterator[Callable[..., None]]:
    """Show progress towards a total; yields a function of how much is done and, optionally, a remark."""
    console = Console(stderr=True, highlight=False)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[remark]}"),
        TimeElapsedColumn(),
        TextColumn("ETA"),
        TimeRemainingColumn(),
    )
    every, printed = max(1, total // LINES), time.monotonic()
    last, began, before = printed, printed, 0

    def line(done: int, remark: str = "") -> None:
        nonlocal printed, last, began, before
        now = time.monotonic()
        if not before or now - last < AT_ONCE:  # loading, and what an earlier command did, tell nothing of the pace
            began, before = now, done
        last = now
        if before < done < total:
            left = (now - began) / (done - before) * (total - done)
            remark = f"{remark}, {about(left)} left" if left >= SECONDS else remark
        if done % every == 0 or done in (1, total) or now - printed > SECONDS:
            printed = now
            console.print(f"{what}: {done}/{total} {remark}".rstrip(), soft_wrap=True)

    if not console.is_terminal:
        yield line
        return
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(what, total=total, remark="")
        yield lambda done, remark="": progress.update(task, completed=done, remark=remark)


class Stages:
    """Shows one count of progress after another."""

    def __init__(self) -> None:
        self._stage = ""
        self._open = ExitStack()
        self._show: Callable[..., None] = lambda done, remark: None

    def __enter__(self) -> Callable[[str, int, int, str], None]:
        return self._report

    def __exit__(self, *error: Any) -> None:
        self._open.close()

    def _report(self, stage: str, done: int, total: int, remark: str) -> None:
        if stage != self._stage:
            self._open.close()
            self._stage, self._show = stage, self._open.enter_context(counting(stage, total))
        self._show(done, remark)
