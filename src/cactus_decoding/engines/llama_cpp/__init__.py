"""llama-cpp-python's own class and an OpenAI-compatible server, on our loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cactus_decoding.engines.llama_cpp.llama import CactusLlama

__all__ = ["CactusLlama"]


def __getattr__(name: str) -> Any:
    """Import the class when it is asked for: the server's command must not wait for it."""
    if name != "CactusLlama":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from cactus_decoding.engines.llama_cpp.models.compatibility import check_llama_cpp

    check_llama_cpp()  # says what to install, where an import would fail by a name
    from cactus_decoding.engines.llama_cpp import llama

    return llama.CactusLlama
