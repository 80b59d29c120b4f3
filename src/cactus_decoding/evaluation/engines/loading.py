"""Engines by name."""

from __future__ import annotations

from cactus_decoding.arguments.checks import check_choice
from cactus_decoding.evaluation.engines.engine import Engine

ENGINES = ("transformers", "vllm")


def load_engine(name: str, target: str, draft: str, *, audited: bool, engine_arguments: str | None = None) -> Engine:
    """Return the engine of a name with its models loaded.

    Args:
        name: ``transformers`` or ``vllm``.
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
    from cactus_decoding.evaluation.engines.transformers import TransformersEngine

    return TransformersEngine.load(target, draft, audited=audited)
