"""A process that tries grammars out, so that one that never ends, or ends its process, does no harm."""

from __future__ import annotations

import json
from collections import OrderedDict

from cactus_decoding.core.constraints import compiling
from cactus_decoding.core.constraints.grammar import Grammar
from cactus_decoding.core.worker import WorkerProcess

SECONDS = 5.0  # that a grammar may take
_KEPT = 64


class GrammarWorker(WorkerProcess):
    """Tries grammars out in a process of its own, which is ended where one takes too long.

    Only what could be compiled there is compiled here. A process is kept for the next grammar; a new one starts when it
    is needed.
    """

    def __init__(self, vocabulary: compiling.Vocabulary, seconds: float = SECONDS) -> None:
        described = {
            "tokens": [token.decode("latin-1") for token in vocabulary.tokens],
            "special": vocabulary.special_token_ids,
            "ends": vocabulary.ends,
        }
        super().__init__(compiling.__file__, json.dumps(described).encode(), "compiles grammars")
        self._seconds = seconds
        self._tried: OrderedDict[Grammar, str] = OrderedDict()

    def known(self, grammar: Grammar) -> str | None:
        """Return what `check` returned for a grammar, without waiting for another one; None where it is not kept."""
        return self._tried.get(grammar)

    def check(self, grammar: Grammar) -> str:
        with self._lock:
            if grammar in self._tried:
                self._tried.move_to_end(grammar)
                return self._tried[grammar]
            try:
                compiled = self._try(grammar)
            except ValueError as error:
                for part in grammar.parts:
                    try:
                        self._try(part)
                    except ValueError as theirs:
                        raise ValueError(f"cannot read {part.name}: {theirs}") from None
                raise ValueError(f"cannot read {grammar.name}: {error}") from None
            self._tried[grammar] = compiled
            if len(self._tried) > _KEPT:
                self._tried.popitem(last=False)
            return compiled

    def _try(self, grammar: Grammar) -> str:
        asked = {"kind": grammar.kind, "text": grammar.text, "seconds": self._seconds}
        return self.text(asked, self._seconds, "grammar", " to compile")
