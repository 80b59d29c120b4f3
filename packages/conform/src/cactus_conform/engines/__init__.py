"""Engines by name."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from difflib import get_close_matches
from importlib.metadata import entry_points
from typing import Any

from cactus_conform.engine import Engine, FunctionEngine

GROUP = "cactus_conform.engines"
"""Other distributions add engines by entry points of this group: classes that are called with settings."""
BUILT_IN = {
    "transformers": "cactus_conform.engines.transformers:TransformersEngine",
    "vllm": "cactus_conform.engines.vllm:VllmEngine",
    "llama-cpp": "cactus_conform.engines.llama_cpp:LlamaCppEngine",
}


def engines() -> dict[str, str]:
    """Return where each engine that has a name is found, as ``module:class``."""
    return BUILT_IN | {each.name: each.value for each in entry_points(group=GROUP)}


def open_engine(name: str, settings: Mapping[str, Any] | None = None) -> Engine:
    """Return an engine by its name, a server by its address, or a function or a class by ``module:name``.

    Raises `EngineError` for a server that does not answer, and `ValueError` for an unknown name or an engine that is
    not installed.

    Example:
        >>> open_engine("vlm")
        Traceback (most recent call last):
        ValueError: engine must be one of ... but is 'vlm'; did you mean 'vllm'?
    """
    if name.startswith(("http://", "https://")):
        from cactus_conform.engines.server import ServerEngine

        return ServerEngine(name, settings)
    known = engines()
    module, _, attribute = known.get(name, name).partition(":")
    if not attribute:
        close = get_close_matches(name, known, n=1)
        raise ValueError(
            f"engine must be one of {', '.join(sorted(known))}, an address such as http://127.0.0.1:8000, or a "
            f"function or a class as module:name, but is {name!r}{f'; did you mean {close[0]!r}?' if close else ''}"
        )
    try:
        found = getattr(importlib.import_module(module), attribute)
        if isinstance(found, type) and issubclass(found, Engine):
            return found(settings)  # type: ignore[call-arg]  # engines that have names take settings
    except (ImportError, AttributeError) as error:
        raise ValueError(f"engine {name!r} cannot be imported: {error}") from error
    if settings:
        raise ValueError(f"a function takes no settings, but {', '.join(settings)} are given")
    return FunctionEngine(found)
