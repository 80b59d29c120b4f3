"""Constraints of a server's responses: tried in a process of their own before they are compiled here."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from queue import LifoQueue

from cactus_decoding.core.constraints.grammar import Grammar
from cactus_decoding.core.constraints.matching import GrammarConstraint, GrammarVocabulary, vocabulary_of
from cactus_decoding.core.constraints.worker import SECONDS, GrammarWorker
from cactus_decoding.core.pair import Pair

PROCESSES = 2  # that compile grammars: one that takes its whole time leaves the other to everybody else


class ConstraintMaker:
    def __init__(self, pair: Pair, seconds: float = SECONDS) -> None:
        self._pair, self._seconds = pair, seconds
        self._lock, self._workers = threading.Lock(), list[GrammarWorker]()
        self._free = LifoQueue[GrammarWorker]()  # the second process starts when both are needed

    def prepare(self) -> None:
        """Read the vocabulary and start a process, so that no request waits for them."""
        self._vocabulary()
        with self._worker() as worker:
            worker.start()

    def make(self, grammar: Grammar) -> GrammarConstraint:
        known = (each.known(grammar) for each in self._all())
        compiled = next((text for text in known if text is not None), None)
        if compiled is None:
            with self._worker() as worker:
                compiled = worker.check(grammar)
        return self._vocabulary().constraint(compiled)

    def close(self) -> None:
        for worker in self._workers:
            worker.close()

    def _vocabulary(self) -> GrammarVocabulary:
        pair = self._pair
        with self._lock:
            return GrammarVocabulary.of(pair.tokenizer, pair.target.vocabulary_size, pair.stop_token_ids)

    @contextmanager
    def _worker(self) -> Iterator[GrammarWorker]:
        self._all()
        worker = self._free.get()
        try:
            yield worker
        finally:
            self._free.put(worker)

    def _all(self) -> list[GrammarWorker]:
        with self._lock:
            if not self._workers:
                tokens = vocabulary_of(self._pair.tokenizer, self._pair.stop_token_ids)
                self._workers += [GrammarWorker(tokens, self._seconds) for _ in range(PROCESSES)]
                for worker in self._workers:
                    self._free.put(worker)
            return self._workers
