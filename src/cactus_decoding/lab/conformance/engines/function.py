"""A Python function as an engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cactus_decoding.lab.conformance.asking import DRAFTS, OPTIONAL, Answer, Engine, EngineError, Query


class FunctionEngine(Engine):
    """A function ``(prompt, sampling, seed) -> tokens``.

    Args:
        function: is given the prompt's tokens as a list, a `Sampling` and a seed; returns the output's tokens, the one
            that ends it included. Its attribute ``supports`` is that of `Engine`, and without it all but ``cancels``.

    Example:
        >>> FunctionEngine(lambda prompt, sampling, seed: [1]).name
        '<lambda>'
    """

    def __init__(self, function: Callable[..., Sequence[int]]) -> None:
        if not callable(function):
            raise TypeError(f"engine must be an engine or a function, but is {function!r}")
        self.name = str(getattr(function, "__name__", type(function).__name__))
        self._function = function
        self.supports = frozenset(getattr(function, "supports", {*OPTIONAL} - {"cancels"})) | {"repeats"}
        self.drafts = tuple(getattr(function, "drafts", DRAFTS))

    def one(self, query: Query) -> Answer:
        """Answer a query."""
        try:
            tokens = self._function(list(query.prompt), query.sampling, query.seed)
            return Answer(tuple(int(each) for each in tokens))
        except Exception as error:
            raise EngineError(f"{self.name} failed: {type(error).__name__}: {error}") from error
