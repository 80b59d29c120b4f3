"""Where models run and in which type of numbers, by what was asked for and what reads them."""

from __future__ import annotations

from pathlib import Path

import torch

from cactus_decoding.arguments.checks import shown
from cactus_decoding.models.cached import ForwardName
from cactus_decoding.models.llama_cpp.settings import parse_gguf


def device_beside_files(
    target: str | Path,
    draft: str | Path | None,
    dtype: str | torch.dtype,
    device: str | torch.device | None,
    forward: ForwardName,
) -> str | torch.device | None:
    """Return the device to use, the CPU where a GGUF file takes part; refuse what llama.cpp does not do.

    Raises:
        ValueError: for another device, a forward pass of a target, or a dtype of weights, that is llama.cpp's to say.
    """
    files = [name for name in (target, draft) if name is not None and parse_gguf(name) is not None]
    if not files:
        return device
    name = str(files[0])
    if device is not None and str(device) != "cpu":
        raise ValueError(f"rows of a GGUF file are on the CPU (gpu_layers uses a GPU), but device is {shown(device)}")
    if forward != "auto" and parse_gguf(target) is not None:
        raise ValueError(f"forward must be 'auto' for {name!r}, which llama.cpp reads, but is {forward!r}")
    if dtype != "auto" and all(each is None or parse_gguf(each) is not None for each in (target, draft)):
        raise ValueError(f"dtype must be 'auto' for {name!r}, whose weights are read as they are stored: {dtype}")
    return "cpu"


def checked_device(given: str | torch.device | None) -> torch.device:
    """Return a device that is there: a GPU, if there is one and none is given; raise `ValueError` for another."""
    if given is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(given)
        torch.empty(0, device=device)
    except (RuntimeError, TypeError, AssertionError, NotImplementedError) as error:
        why = str(error).strip().splitlines()[0]
        raise ValueError(f"device must be one that this machine has, but is {shown(given)}: {why}") from None
    return device


def checked_dtype(given: str | torch.dtype) -> str | torch.dtype:
    """Return a type of weights, or ``auto``; raise `ValueError` for what is neither."""
    dtype = getattr(torch, given, None) if isinstance(given, str) and given != "auto" else given
    if dtype != "auto" and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise ValueError(f"dtype must be 'auto' or one of floating point, such as 'bfloat16', but is {shown(given)}")
    return dtype
