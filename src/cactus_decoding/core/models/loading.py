"""Models by name, as engines load them, and the device and the number type that they run with."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from cactus_decoding.core.checks import short_repr, suggestion

if TYPE_CHECKING:
    import torch

    from cactus_decoding.core.models.base import BaseCachedModel
    from cactus_decoding.core.models.tokenizers import Tokenizer


ENGINE_GROUP = "cactus_decoding.engines"  # the entry points by which engines register their loaders, ours too
_LONGEST = 300


class ModelLoader(Protocol):
    """Reads models.

    ``suffix`` is how the names of its files end, in small letters; it is empty for that of folders and of the hub.
    ``rows_on_cpu`` says whether its logits are on the CPU, whatever computes them.
    """

    suffix: str
    rows_on_cpu: bool

    @property
    def drafters(self) -> Mapping[str, type[Any]]:
        """Drafters that only its models have, by name; each class has a method ``drafter`` that fits it to a target."""
        return {}

    def check_name(self, role: str, name: str | Path, words: Iterable[str]) -> None:
        """Raise `ValueError` for what cannot be a model's name, without asking a hub or reading weights."""

    def only_cached(self, role: str, name: str | Path) -> bool:
        """Whether the hub cannot be asked, so that what was fetched before has to do."""
        return False

    def load_tokenizer(self, role: str, name: str | Path, *, local: bool = False) -> Tokenizer:
        """Load a tokenizer; with ``local`` only one that was fetched before."""

    def load_cached(
        self, role: str, name: str | Path, dtype: str | torch.dtype, device: torch.device, *, local: bool = False
    ) -> BaseCachedModel: ...

    def with_cache(self, model: Any) -> BaseCachedModel: ...


@cache
def loaders() -> tuple[ModelLoader, ...]:
    """Return what reads models; that of folders and of the hub comes last."""
    found: list[ModelLoader] = [point.load()() for point in entry_points(group=ENGINE_GROUP)]
    return tuple(sorted(found, key=lambda each: (each.suffix == "", each.suffix)))


def loader_of(name: str | Path) -> ModelLoader:
    """Text may give settings after a file, such as ``model.gguf:threads=2``."""
    *of_files, of_folders = loaders()
    text = str(name).lower()
    for loader in of_files:
        if (text.endswith(loader.suffix) or f"{loader.suffix}:" in text) and not Path(name).is_dir():
            return loader
    return of_folders


def check_model_name(role: str, name: str | Path, words: Iterable[str] = ()) -> None:
    """Raise `ValueError` for what is no existing file or folder and cannot be a name on the hub; asks nobody."""
    if not isinstance(name, (str, Path)):
        raise TypeError(f"{role} must be a path or a name, but is {short_repr(name)}")
    if name == "":
        raise ValueError(f"cannot load the {role}: its name is empty")
    loader_of(name).check_name(role, name, words)


def similar_path(path: Path) -> str:
    siblings: list[str] = []
    with suppress(OSError):
        siblings = [each.name for each in path.parent.iterdir() if each.is_dir() or each.suffix == ".gguf"]
    return suggestion(path.name, siblings)


def only_cached(role: str, name: str | Path) -> bool:
    """Ask the hub once for a name; return whether it cannot be asked, so that what was fetched before has to do."""
    return loader_of(name).only_cached(role, name)


def load_tokenizer(role: str, name: str | Path, *, local: bool = False) -> Tokenizer:
    return loader_of(name).load_tokenizer(role, name, local=local)


def load_cached(
    role: str, name: str | Path, dtype: str | torch.dtype, device: torch.device, *, local: bool = False
) -> BaseCachedModel:
    return loader_of(name).load_cached(role, name, dtype, device, local=local)


def with_cache(model: Any) -> BaseCachedModel:
    from cactus_decoding.core.models.base import BaseCachedModel

    return model if isinstance(model, BaseCachedModel) else loaders()[-1].with_cache(model)


def sentence_of(error: Exception) -> str:
    """Return what an error says, on one line and not cut within a sentence."""
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    if lines and lines[0].endswith((".", "!")):
        text = lines[0]
    else:
        text = " ".join(" ".join(lines).split())
        if len(text) > _LONGEST:
            text = text[:_LONGEST].rpartition(" ")[0] + " …"
    known = isinstance(error, (OSError, ValueError, RuntimeError, ImportError)) and text
    return text if known else f"{type(error).__name__}: {text}".rstrip(": ")


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
    target: str | Path, draft: str | Path | None, dtype: str | torch.dtype, device: str | torch.device | None
) -> str | torch.device | None:
    """Return the device to use: the CPU beside a GGUF file. Raise `ValueError` for what llama.cpp does not do."""
    files = [name for name in (target, draft) if name is not None and loader_of(name).rows_on_cpu]
    if not files:
        return device
    name = str(files[0])
    if device is not None and str(device) != "cpu":
        given = short_repr(device)
        raise ValueError(f"rows of a GGUF file are on the CPU (gpu_layers uses a GPU), but device is {given}")
    if dtype != "auto" and all(each is None or loader_of(each).rows_on_cpu for each in (target, draft)):
        raise ValueError(f"dtype must be 'auto' for {name!r}, whose weights are read as they are stored: {dtype}")
    return "cpu"


def checked_device(given: str | torch.device | None) -> torch.device:
    import torch

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
    import torch

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
    import torch

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
