"""Engines by name."""

from __future__ import annotations

from cactus_decoding.core.checks import check_choice
from cactus_decoding.core.pair import load_pair
from cactus_decoding.engines.llama_cpp.models.settings import parse_gguf
from cactus_decoding.lab.evaluation.engines.engine import Engine, PairEngine

ENGINE_NAMES = ("transformers", "llama-cpp", "vllm")
"""What ``--engine`` may name: what reads the target. Of the first two, models of Hugging Face and GGUF files, the
engine is `PairEngine`, the package's own loop."""


def load_engine(name: str, target: str, draft: str, *, audited: bool, engine_arguments: str | None = None) -> Engine:
    """Return the engine of a name with its models loaded.

    Target and draft are named as in `load_pair`. With ``audited`` answers carry their exact costs, except in vLLM;
    ``engine_arguments`` are vLLM's, as a JSON object.
    """
    check_choice("engine", name, ENGINE_NAMES)
    if name == "vllm":
        from cactus_decoding.lab.evaluation.engines.vllm import VllmEngine, located

        return VllmEngine(*located(target, draft, engine_arguments))
    if engine_arguments is not None:
        raise ValueError(f"--engine-args is for --engine vllm, but the engine is {name!r}")
    check_reads(name, target)
    return PairEngine(load_pair(target, draft), audited=audited)


def check_reads(name: str, target: str) -> None:
    check_choice("engine", name, ENGINE_NAMES)
    if name == "llama-cpp" and parse_gguf(target) is None:
        raise ValueError(f"--engine llama-cpp reads GGUF files, but the target is {target!r}")
