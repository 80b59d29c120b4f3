"""Faults on purpose: a call of some functions fails, as if there were a mistake in what they call."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest


class InjectedError(Exception):
    """What fails on purpose."""


def fail(*_: Any) -> None:
    raise InjectedError


def kill(worker: object, process: subprocess.Popen[bytes], *_: Any) -> None:
    process.kill()
    process.wait()


class Faults:
    """Counts the calls of some functions, and does something before or after one of them, or all from it on.

    ``functions`` are pairs of an object and the name of a function in it; ``does`` gets the call's arguments.
    """

    def __init__(
        self,
        *functions: tuple[Any, str],
        does: Callable[..., None] = fail,
        after: bool = False,
        lasting: bool = False,
    ) -> None:
        self._functions, self._does, self._after, self._lasting = functions, does, after, lasting
        self._lock, self._at, self.calls = threading.Lock(), 0, 0

    @contextmanager
    def at(self, number: int) -> Iterator[Faults]:
        """Let it happen at a call, counted from 1, until the block ends; 0 for none."""
        self._at, self.calls = number, 0
        with pytest.MonkeyPatch.context() as patch:
            for owner, name in self._functions:
                patch.setattr(owner, name, self._watched(getattr(owner, name)))
            yield self

    @property
    def happened(self) -> bool:
        return 0 < self._at <= self.calls

    def _watched(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            with self._lock:
                self.calls += 1
                now = self.calls == self._at or (self._lasting and self.happened)
            if now and not self._after:
                self._does(*arguments)
            result = function(*arguments, **options)
            if now and self._after:
                self._does(*arguments)
            return result

        return call
