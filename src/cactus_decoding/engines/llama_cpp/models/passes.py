"""Whose turn it is to read: texts that share a context, and passes over what all of them wait for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cactus_decoding.core.models.base import Cancelled
from cactus_decoding.engines.llama_cpp.models.context import Context, Portion

_PASS = 256  # tokens of a pass at most where texts share a context: none waits longer for another one's prompt


@dataclass(eq=False)
class _Job:
    """What a text waits to be read on by, and how far that has come."""

    context: Context
    portion: Portion
    rows: list[Tensor] = field(default_factory=list)
    error: Exception | None = None
    _read: int = 0

    @property
    def left(self) -> int:
        """Tokens that are not read yet; none where that has failed."""
        return 0 if self.error is not None else len(self.portion.token_ids) - self._read

    def next(self, count: int) -> Portion:
        sequence, token_ids, start, rows = self.portion
        wanted = min(max(rows - (self.left - count), 0), count)
        return Portion(sequence, token_ids[self._read : self._read + count], start + self._read, wanted)

    def took(self, count: int, rows: Tensor) -> None:
        self._read, self.rows = self._read + count, [*self.rows, rows]


@contextmanager
def release_on_exit(*locks: threading.RLock | threading.Condition) -> Iterator[None]:
    """Give back what this thread still has locked at the end: an interruption where a ``with`` ends leaves it so."""
    try:
        yield
    finally:
        for lock in locks:
            with suppress(RuntimeError):
                while True:
                    lock.release()


class BatchScheduler:
    """Reads for responses that run in threads: a pass is made as soon as each of them waits for one.

    So chains of several texts are read together, whatever else their responses are asked for. What a pass reads does
    not depend on how fast a thread is, only on who takes part. Contexts that are read first come first, such as a
    draft's.
    """

    def __init__(self, contexts: Sequence[Context]) -> None:
        self._contexts, self.changed = list(contexts), threading.Condition()
        # by thread: whatever interrupts one, it clears up what it finds of its own
        self._responses, self._waiting = set[int](), dict[int, _Job]()
        self._reader: int | None = None
        self._read = list[_Job]()

    @contextmanager
    def response(self) -> Iterator[None]:
        try:
            try:
                with self.changed:
                    self._responses.add(threading.get_ident())
                yield
            finally:
                self._leave(ends=True)
        finally:  # again, as that may be interrupted
            self._leave(ends=True)

    @contextmanager
    def alone(self) -> Iterator[None]:
        self._leave()
        with self.changed:
            while self._reader is not None:
                self.changed.wait()
            yield

    def read(self, context: Context, portion: Portion, check: Callable[[], None]) -> Tensor:
        """Return the logits of a portion, in memory of its own; ``check`` may end it before any pass by raising."""
        job, me = _Job(context, portion), threading.get_ident()
        try:
            with self.changed:
                self._waiting[me] = job
            while True:
                check()
                with self.changed:
                    while job.left and (self._reader is not None or len(self._waiting) < len(self._responses)):
                        self.changed.wait()
                        check()
                    if not job.left:
                        break
                    context = min((each.context for each in self._waiting.values()), key=self._contexts.index)
                    jobs = [each for each in self._waiting.values() if each.context is context]
                    self._read, self._reader = sorted(jobs, key=lambda each: each.portion.sequence), me
                self._pass(context, self._read)
        finally:
            self._leave()
        if job.error is not None:
            raise job.error
        return torch.cat(job.rows)

    def _pass(self, context: Context, jobs: list[_Job]) -> None:
        """Read what those wait for whose context comes first; the lock is left to others meanwhile."""
        counts = shares([job.left for job in jobs], min(_PASS, context.batch_size))
        portions = [job.next(count) for job, count in zip(jobs, counts, strict=True)]
        try:
            read = context.read(portions).clone().split([portion.rows for portion in portions])
        except Exception as error:
            return self._leave(str(error))
        with self.changed:
            for job, count, rows in zip(jobs, counts, read, strict=True):
                job.took(count, rows)
            self._waiting = {thread: each for thread, each in self._waiting.items() if each.left}
            self._read, self._reader = [], None
            self.changed.notify_all()

    def _leave(self, error: str = "the response that read for others was interrupted", *, ends: bool = False) -> None:
        """Clear up what a thread that waits and reads no more has left; who was in its pass hears of it."""
        me = threading.get_ident()
        with self.changed:
            if self._reader == me:
                for job in self._read:
                    job.error = RuntimeError(error)
                self._waiting = {thread: each for thread, each in self._waiting.items() if each.left}
                self._read, self._reader = [], None
            self._waiting.pop(me, None)
            if ends:
                self._responses.discard(me)
            self.changed.notify_all()


def shares(wanted: Sequence[int], room: int) -> list[int]:
    """Return how many tokens each text may have read in a pass: short chains whole, the rest in equal parts."""
    given = [0] * len(wanted)
    for rank, place in enumerate(sorted(range(len(wanted)), key=wanted.__getitem__)):
        given[place] = min(wanted[place], room // (len(wanted) - rank))
        room -= given[place]
    return given


class SequenceSlot:
    """One text's place in a context; passes read for all who share it (None, where nobody else does)."""

    def __init__(self, context: Context, sequence: int = 0, passes: BatchScheduler | None = None) -> None:
        self.context, self._sequence, self._passes = context, sequence, passes
        # looked at before every pass: with it another thread ends the response, whose next read raises `Cancelled`
        self.cancelled: threading.Event | None = None

    @property
    def shared(self) -> bool:
        """Whether the context has other texts too; rows are then in memory of their own."""
        return self._passes is not None

    def use_threads(self, count: int) -> None:
        with self.alone():
            self.context.use_threads(count)

    def forget_from(self, length: int) -> bool:
        with self.alone():
            return self.context.forget_from(self._sequence, length)

    @property
    def last(self) -> int:
        """How many tokens of it the last batch had that had any."""
        return self.context.last[self._sequence]

    @property
    def num_held(self) -> int:
        with self.alone():
            return self.context.num_held(self._sequence)

    def save(self, *, partial: bool = False) -> np.ndarray[Any, Any]:
        with self.alone():
            return self.context.save(self._sequence, partial=partial)

    def restore(self, saved: np.ndarray[Any, Any], *, partial: bool = False) -> None:
        with self.alone():
            self.context.restore(self._sequence, saved, partial=partial)

    def read(self, token_ids: np.ndarray[Any, Any], start: int, rows: int) -> Tensor:
        """Return logits after the last ``rows`` of at most ``batch_size`` tokens; the next call may overwrite them."""
        self._check()
        portion = Portion(self._sequence, token_ids, start, rows)
        if self._passes is not None:
            return self._passes.read(self.context, portion, self._check)
        return self.context.read([portion])

    def read_tree(
        self, token_ids: np.ndarray[Any, Any], positions: np.ndarray[Any, Any], lies_on: np.ndarray[Any, Any], rows: int
    ) -> Tensor:
        self._check()
        return self.context.read_tree(token_ids, positions, lies_on, rows)

    def _check(self) -> None:
        if self.cancelled is not None and self.cancelled.is_set():
            raise Cancelled

    def alone(self) -> AbstractContextManager[None]:
        """Let nobody read, save or forget a text of the context meanwhile."""
        return nullcontext() if self._passes is None else self._passes.alone()
