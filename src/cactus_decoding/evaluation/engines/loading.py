"""Engines by name."""

from __future__ import annotations

from cactus_decoding.arguments.checks import check_choice
from cactus_decoding.evaluation.engines.engine import Engine
from cactus_decoding.models.llama_cpp.settings import parse_gguf

ENGINES = ("transformers", "llama-cpp", "vllm")
"""What reads the target; the first two are the package's own loop, over models of Hugging Face and GGUF files."""


def load_engine(name: str, target: str, draft: str, *, audited: bool, engine_arguments: str | None = None) -> Engine:
    """Return the engine of a name with its models loaded.

    Args:
        name: ``transformers``, ``llama-cpp`` or ``vllm``.
        target: path or hub name, or ``bundled``.
        draft: likewise, ``bundled:draft``, ``ngram``, or ``early_exit:layers=3`` (of transformers only).
        audited: whether answers carry their exact costs; those of vLLM never do.
        engine_arguments: further arguments of vLLM's engine, as a JSON object.

    Raises:
        ValueError: for an unknown engine, arguments that it does not take, or models that cannot be loaded.
    """
    check_choice("engine", name, ENGINES)
    if name == "vllm":
        from cactus_decoding.evaluation.engines.vllm import VllmEngine

        return VllmEngine.load(target, draft, engine_arguments)
    if engine_arguments is not None:
        raise ValueError(f"--engine-args is for --engine vllm, but the engine is {name!r}")
    check_reads(name, target)
    from cactus_decoding.evaluation.engines.transformers import TransformersEngine

    return TransformersEngine.load(target, draft, audited=audited)


def check_reads(name: str, target: str) -> None:
    """Raise `ValueError` for an engine that does not read a target of that name."""
    check_choice("engine", name, ENGINES)
    if name == "llama-cpp" and parse_gguf(target) is None:
        raise ValueError(f"--engine llama-cpp reads GGUF files, but the target is {target!r}")
