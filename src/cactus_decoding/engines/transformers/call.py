"""What `generate` was called with, as far as it keeps that from a callable ``custom_generate``."""

from __future__ import annotations

from typing import Literal

import torch
from transformers import PreTrainedModel

from cactus_decoding.core.checks import check_generator
from cactus_decoding.engines.transformers.compatibility import is_spread_over_processes


def check_not_synced(model: PreTrainedModel, synced_gpus: bool | None) -> None:
    """Raise `ValueError` where every process must run the target as often as the others.

    With ``synced_gpus=None``, `generate` sets it itself where weights are spread over processes, and tells no callable.
    """
    if synced_gpus is None:
        spread, group = is_spread_over_processes(model), torch.distributed
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
