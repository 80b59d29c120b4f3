"""Pairs of models, loaded once and kept."""

from __future__ import annotations

from collections import OrderedDict

from cactus_decoding.generation.pair import Pair, load_pair
from cactus_decoding.models.loading import sentence_of

KEPT = 2
"""Pairs that visitors named and that stay in memory; the default one always does."""


class PairStore:
    """Loads pairs, and keeps the ones that were used last. One caller at a time.

    ``default`` names target and draft where a visitor names neither; None for the bundled ones.
    """

    def __init__(self, default: tuple[str | None, str | None] = (None, None)) -> None:
        self.default = default
        self._pairs: OrderedDict[tuple[str | None, str | None], Pair] = OrderedDict()

    def has(self, target: str | None, draft: str | None) -> bool:
        """Whether the pair need not be loaded."""
        return self._key(target, draft) in self._pairs

    def get(self, target: str | None, draft: str | None) -> Pair:
        """Return a pair, loaded if it is not there yet.

        Raises:
            ValueError: if it cannot be loaded, in a sentence. Code that comes with a model is never run.
        """
        key = self._key(target, draft)
        if key not in self._pairs:
            self._pairs[key] = _load(*key)
        self._pairs.move_to_end(key)
        named = [each for each in self._pairs if each != self.default]
        for old in named[:-KEPT]:
            del self._pairs[old]
        return self._pairs[key]

    def _key(self, target: str | None, draft: str | None) -> tuple[str | None, str | None]:
        """Return the names to load by: a draft alone goes with the default target."""
        return (target, draft) if target is not None else (self.default[0], draft or self.default[1])


def _load(target: str | None, draft: str | None) -> Pair:
    try:
        return load_pair(target, draft)
    except ValueError:
        raise
    except Exception as error:  # whatever a broken checkpoint provokes is the visitor's to read, not the server's end
        reason = sentence_of(error)
        raise ValueError(f"cannot load the pair of target {target!r} and draft {draft!r}: {reason}") from error
