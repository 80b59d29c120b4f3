"""Chooses the device and the number type that a model runs with."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import torch

from cactus_decoding.core.checks import short_repr
from cactus_decoding.core.models.loading import engine_of

SMALL = 2**25
"""Up to so many weights a processor's caches hold the model, so that 16 bits save no time. A pair of 4 million made 590
tokens a second in float32 and 350 in bfloat16, on a processor with instructions for it.
"""
MEMORY_SHARE = 0.5  # share of the free memory that float32 weights may take if only the file asked for 16 bits
_INSTRUCTIONS = {
    "torch.bfloat16": frozenset({"amx_bf16", "avx512_bf16", "bf16"}),
    "torch.float16": frozenset({"amx_fp16", "avx512_fp16", "asimdhp"}),
}
"""Any of these multiplies matrices of that type without turning them into float32 first."""


def device_beside_files(
    target: str | Path,
    draft: str | Path | None,
    dtype: str | torch.dtype,
    device: str | torch.device | None,
) -> str | torch.device | None:
    """Return the device to use: the CPU beside a GGUF file. Raise `ValueError` for what llama.cpp does not do."""
    files = [name for name in (target, draft) if name is not None and engine_of(name).rows_on_cpu]
    if not files:
        return device
    name = str(files[0])
    if device is not None and str(device) != "cpu":
        given = short_repr(device)
        raise ValueError(f"rows of a GGUF file are on the CPU (gpu_layers uses a GPU), but device is {given}")
    if dtype != "auto" and all(each is None or engine_of(each).rows_on_cpu for each in (target, draft)):
        raise ValueError(f"dtype must be 'auto' for {name!r}, whose weights are read as they are stored: {dtype}")
    return "cpu"


def checked_device(given: str | torch.device | None) -> torch.device:
    if given is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(given)
        torch.empty(0, device=device)
    except (RuntimeError, TypeError, AssertionError, NotImplementedError) as error:
        why = str(error).strip().splitlines()[0]
        raise ValueError(f"device must be one that this machine has, but is {short_repr(given)}: {why}") from None
    return device


def checked_dtype(given: str | torch.dtype) -> str | torch.dtype:
    dtype = getattr(torch, given, None) if isinstance(given, str) and given != "auto" else given
    if dtype != "auto" and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        wrong = short_repr(given)
        raise ValueError(f"dtype must be 'auto' or one of floating point, such as 'bfloat16', but is {wrong}")
    return dtype


def fastest_dtype(
    stored: torch.dtype, num_weights: int, device: torch.device, memory: float | None = None
) -> torch.dtype:
    """Return what a model runs fastest in: float32 instead of 16 bits on a CPU that would have to convert them.

    Without instructions for 16 bits, blocks of tokens take five times longer in them than in float32, and a small model
    is slower in them everywhere. The choice depends on the machine alone, so that the same one gives the same tokens,
    unless float32 weights would take more than `MEMORY_SHARE` of its free bytes.
    """
    if device.type != "cpu" or str(stored) not in _INSTRUCTIONS:
        return stored
    slower = num_weights <= SMALL or not _INSTRUCTIONS[str(stored)] & instructions()
    room = MEMORY_SHARE * (free_memory() if memory is None else memory)
    return torch.float32 if slower and 4 * num_weights <= room else stored


@cache
def instructions() -> frozenset[str]:
    """Return what the processor can do, by the names of Linux; nothing if that is unknown."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    return frozenset(word for line in lines if line.startswith(("flags", "Features")) for word in line.split())


def free_memory() -> float:
    """Return the bytes that are free, or would be at once; 0 if that is unknown."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return 1024 * next(float(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        pass
    try:  # half of all
        return 0.5 * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return 0.0
