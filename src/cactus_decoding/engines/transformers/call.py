"""What `generate` was called with, as far as it keeps that from a callable ``custom_generate``."""

from __future__ import annotations

import inspect
from typing import Any, Literal

import torch
from transformers import GenerationMixin, PreTrainedModel
from transformers.generation import utils as generation

from cactus_decoding.core.checks import check_generator


def named_arguments_of_generate(model: PreTrainedModel) -> dict[str, Any]:
    """Return the arguments that `generate` was called with by name, if it is what called us; else nothing.

    ``assistant_model``, ``streamer`` and ``synced_gpus`` are parameters of `generate` itself, and none of those reaches
    a callable ``custom_generate`` (transformers 4.57 to 5.19): only its frame still has them. Its other keywords have
    gone into the generation config by then, where they look like the library's defaults.
    """
    code = inspect.unwrap(GenerationMixin.generate).__code__
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code is code and frame.f_locals.get("self") is model:
            own = {name: frame.f_locals.get(name) for name in ("assistant_model", "streamer", "synced_gpus")}
            return {**frame.f_locals.get("kwargs", {}), **own}
        frame = frame.f_back
    return {}


def check_not_synced(model: PreTrainedModel, synced_gpus: bool | None) -> None:
    """Raise `ValueError` where every process must run the target as often as the others.

    With ``synced_gpus=None``, `generate` sets it itself where weights are spread over processes, and tells no callable.
    """
    if synced_gpus is None:
        spread = generation.is_deepspeed_zero3_enabled() or generation.is_fsdp_managed_module(model)
        group = torch.distributed
        synced_gpus = spread and group.is_available() and group.is_initialized() and group.get_world_size() > 1
        cause = ", which `generate` sets for a model whose weights are spread over processes (FSDP, ZeRO-3),"
    else:
        cause = ""
    if synced_gpus:
        raise ValueError(f"synced_gpus{cause} is not supported: processes would take different numbers of steps")


def random_source(
    generator: torch.Generator | None, seed: int | None, device: torch.device
) -> torch.Generator | Literal["seed"] | None:
    """Return the generator to draw from, as `begin` takes it; None is torch's default one, as `generate` has it."""
    if seed is None:
        check_generator(generator, device)
        return generator
    if generator is not None:
        raise ValueError("generator and seed exclude each other: give one of them")
    return "seed"
