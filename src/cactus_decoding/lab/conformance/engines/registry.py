"""Engines by name."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cactus_decoding.core.mistakes import suggestion
from cactus_decoding.lab.conformance.asking import DRAFTS, OPTIONAL, Answer, Engine, EngineError, Query

ENGINES = {
    "cactus": ("cactus", "CactusEngine"),
    "transformers": ("transformers", "TransformersEngine"),
    "vllm": ("vllm", "VllmEngine"),
    "llama-cpp": ("llama_cpp", "LlamaCppEngine"),
}  # modules and classes, imported when asked for


def open_engine(name: str, settings: Mapping[str, Any] | None = None) -> Engine:
    """Return an engine by its name, a server by its address, or a function by ``module:function``.

    Raises `EngineError` for a server that does not answer, and `ValueError` for an unknown name or an engine that is
    not installed.

    Example:
        >>> open_engine("cactis")
        Traceback (most recent call last):
        ValueError: engine must be one of cactus, transformers, vllm, llama-cpp, an address such as http://127.0.0.1:8000...
    """
    try:
        return _opened(name, settings)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"engine {name!r} cannot be imported: {error}") from error


def _opened(name: str, settings: Mapping[str, Any] | None) -> Engine:
    if name in ENGINES:
        module, of = ENGINES[name]
        found: Engine = getattr(importlib.import_module(f"{__package__}.{module}"), of)(settings)
        return found
    if name.startswith(("http://", "https://")):
        from cactus_decoding.lab.conformance.engines.server import ServerEngine

        return ServerEngine(name, settings)
    module, _, attribute = name.partition(":")
    if not attribute:
        known = ", ".join(ENGINES)
        raise ValueError(
            f"engine must be one of {known}, an address such as http://127.0.0.1:8000, or a function as "
            f"module:function, but is {name!r}{suggestion(name, ENGINES)}"
        )

    if settings:
        raise ValueError(f"a function takes no settings, but {', '.join(settings)} are given")
    return FunctionEngine(getattr(importlib.import_module(module), attribute))


class FunctionEngine(Engine):
    """A function ``(prompt, sampling, seed) -> tokens``.

    It is given the prompt's tokens as a list, a `Sampling` and a seed, and returns the output's tokens, including the
    one that ends it. Its attribute ``supports`` is that of `Engine`; without it, all of `OPTIONAL` but ``cancels``.
    """

    def __init__(self, function: Callable[..., Sequence[int]]) -> None:
        if not callable(function):
            raise TypeError(f"engine must be an engine or a function, but is {function!r}")
        self.name = str(getattr(function, "__name__", type(function).__name__))
        self._function = function
        self.supports = frozenset(getattr(function, "supports", {*OPTIONAL} - {"cancels"})) | {"repeats"}
        self.drafts = tuple(getattr(function, "drafts", DRAFTS))

    def one(self, query: Query) -> Answer:
        try:
            tokens = self._function(list(query.prompt), query.sampling, query.seed)
            return Answer(tuple(int(each) for each in tokens))
        except Exception as error:
            raise EngineError(f"{self.name} failed: {type(error).__name__}: {error}") from error
