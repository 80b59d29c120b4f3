"""Constraints of a server's responses: tried in a process of their own before they are compiled here."""

from __future__ import annotations

import threading

from cactus_decoding.core.constraints.grammar import Grammar
from cactus_decoding.core.constraints.matching import GrammarConstraint, GrammarVocabulary, vocabulary_of
from cactus_decoding.core.constraints.worker import SECONDS, GrammarWorker
from cactus_decoding.core.pair import Pair


class ConstraintMaker:
    """Makes constraints for the tokens of one model.

    Args:
        pair: whose target's tokens they are.
        seconds: that a grammar may take to compile.
    """

    def __init__(self, pair: Pair, seconds: float = SECONDS) -> None:
        self._pair, self._seconds = pair, seconds
        self._lock, self._worker = threading.Lock(), list[GrammarWorker]()

    def prepare(self) -> None:
        """Read the vocabulary and start the process, so that no request waits for them."""
        self._vocabulary()
        self._checker().start()

    def make(self, grammar: Grammar) -> GrammarConstraint:
        """Return the constraint of one response.

        Raises:
            ValueError: for a grammar that cannot be read, or takes too long to compile.
        """
        return self._vocabulary().constraint(self._checker().check(grammar))

    def close(self) -> None:
        """End the process."""
        for worker in self._worker:
            worker.close()

    def _vocabulary(self) -> GrammarVocabulary:
        pair = self._pair
        with self._lock:
            return GrammarVocabulary.of(pair.tokenizer, pair.target.vocabulary_size, pair.stop_token_ids)

    def _checker(self) -> GrammarWorker:
        with self._lock:
            if not self._worker:
                tokens = vocabulary_of(self._pair.tokenizer, self._pair.stop_token_ids)
                self._worker.append(GrammarWorker(tokens, self._seconds))
            return self._worker[0]
