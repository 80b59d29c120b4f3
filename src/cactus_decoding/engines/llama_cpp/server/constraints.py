"""Constraints of a server's responses: tried in a process of their own before they are compiled here."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from queue import LifoQueue

from cactus_decoding.core.constraints import compiling
from cactus_decoding.core.constraints.base import Grammar
from cactus_decoding.core.constraints.matching import GrammarConstraint, GrammarVocabulary, vocabulary_of
from cactus_decoding.core.pair import Pair
from cactus_decoding.core.worker import WorkerProcess

GRAMMAR_SECONDS = 5.0  # of processor time, that a grammar may take
_KEPT = 64


class GrammarWorker(WorkerProcess):
    """Tries grammars out in a process of its own, which ends where one takes too much.

    Only what could be compiled there is compiled here.
    """

    def __init__(self, vocabulary: compiling.CompilerVocabulary, seconds: float = GRAMMAR_SECONDS) -> None:
        described = {
            "tokens": [token.decode("latin-1") for token in vocabulary.tokens],
            "special": vocabulary.special_token_ids,
            "ends": vocabulary.ends,
        }
        super().__init__(compiling.__file__, json.dumps(described).encode(), "compiles grammars")
        self._seconds = seconds

    def check(self, grammar: Grammar) -> str:
        with self._lock:
            try:
                return self._try(grammar)
            except ValueError as error:
                for part in grammar.parts:
                    try:
                        self._try(part)
                    except ValueError as theirs:
                        raise ValueError(f"cannot read {part.name}: {theirs}") from None
                raise ValueError(f"cannot read {grammar.name}: {error}") from None

    def _try(self, grammar: Grammar) -> str:
        return self.text({"kind": grammar.kind, "text": grammar.text}, self._seconds, "grammar", " to compile")


PROCESSES = 2  # that compile grammars: one that takes its whole time leaves the other to everybody else


class ConstraintMaker:
    def __init__(self, pair: Pair, seconds: float = GRAMMAR_SECONDS) -> None:
        self._pair, self._seconds = pair, seconds
        self._lock, self._workers = threading.Lock(), list[GrammarWorker]()
        self._free = LifoQueue[GrammarWorker]()  # the second process starts when both are needed
        self._compiled = lru_cache(_KEPT)(self._compile)  # which waits for nobody where a grammar is kept

    def prepare(self) -> None:
        """Read the vocabulary and start a process, so that no request waits for them."""
        self._vocabulary()
        with self._worker() as worker:
            worker.start()

    def make(self, grammar: Grammar) -> GrammarConstraint:
        return self._vocabulary().constraint(self._compiled(grammar))

    def _compile(self, grammar: Grammar) -> str:
        with self._worker() as worker:
            return worker.check(grammar)

    def close(self) -> None:
        for worker in self._workers:
            worker.close()

    def _vocabulary(self) -> GrammarVocabulary:
        pair = self._pair
        with self._lock:
            return GrammarVocabulary.of(pair.tokenizer, pair.target.vocabulary_size, pair.stop_token_ids)

    @contextmanager
    def _worker(self) -> Iterator[GrammarWorker]:
        with self._lock:
            if not self._workers:
                tokens = vocabulary_of(self._pair.tokenizer, self._pair.stop_token_ids)
                self._workers += [GrammarWorker(tokens, self._seconds) for _ in range(PROCESSES)]
                for each in self._workers:
                    self._free.put(each)
        worker = self._free.get()
        try:
            yield worker
        finally:
            self._free.put(worker)
