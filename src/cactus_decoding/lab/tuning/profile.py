"""The file that keeps what was tuned, with the machine and the files that it is valid for."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field

from cactus_decoding.core.drafting.measuring import cache_folder, device_name
from cactus_decoding.core.drafting.timing import part_of_profile
from cactus_decoding.core.files.jsonl import STRICT, read_as
from cactus_decoding.core.models.loading import checked_device
from cactus_decoding.engines.llama_cpp.models.settings import parse_gguf

AGAIN = "run cactus tune here again"
_WEIGHTS = ("*.safetensors", "*.bin")


@dataclass(frozen=True)
class Profile:
    """What is fastest for a target on one machine.

    Names may have settings, such as ``model.gguf:threads=2``. No proposals mean that speculation does not pay.
    ``files`` and ``machine`` are what `file_key` (of both names) and `machine_key` return.
    """

    target: Annotated[str, Field(min_length=1)]
    draft: Annotated[str, Field(min_length=1)]
    num_speculative_tokens: Annotated[int, Field(ge=0)]
    threads: Annotated[int, Field(ge=1)]
    files: Mapping[str, Any]
    machine: Mapping[str, Any]

    __pydantic_config__ = STRICT

    @classmethod
    def of(cls, target: str, draft: str, num_speculative_tokens: int, threads: int) -> Profile:
        files = {each: file_key(each) for each in (target, draft)}
        return cls(target, draft, num_speculative_tokens, threads, files, machine_key())

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def read(cls, path: Path) -> Profile:
        """Return the profile in a file, for this machine and the files that it was made with."""
        values = part_of_profile(path, "recommended")
        found = read_as(cls, values, f"{str(path)!r} is no profile of cactus tune")
        here = machine_key()
        for name, value in here.items():
            if found.machine.get(name) != value:
                raise ValueError(
                    f"the profile {str(path)!r} is of a machine with {name} {found.machine.get(name)!r}, but this one "
                    f"has {value!r}: {AGAIN}"
                )
        for name, key in found.files.items():
            if file_key(name) != key:
                raise ValueError(f"the profile {str(path)!r} is of another {name!r} than is there now: {AGAIN}")
        return found


def machine_key() -> dict[str, Any]:
    """Return what distinguishes machines, as far as speed is concerned."""
    return {"processor": device_name(torch.device("cpu")), "cores": os.cpu_count()} | (
        {"accelerator": device_name(device)} if (device := checked_device(None)).type == "cuda" else {}
    )


def file_key(name: str) -> list[int]:
    """Return the size and the last change of a model's files, in bytes and nanoseconds; nothing for other names."""
    gguf = parse_gguf(name)
    path = Path(name) if gguf is None else gguf.path
    files = [path] if path.is_file() else [each for kind in _WEIGHTS for each in path.glob(kind)]
    stats = [each.stat() for each in files]
    return [sum(each.st_size for each in stats), max(each.st_mtime_ns for each in stats)] if stats else []


def default_place(target: str) -> Path:
    """Return where the profile of a target is kept by default; it may be deleted at any time."""
    name = (parse_gguf(target) or (Path(target),))[0].name.removesuffix(".gguf")
    return cache_folder().parent / "profiles" / f"{name}-{sha256(target.encode()).hexdigest()[:8]}.json"
