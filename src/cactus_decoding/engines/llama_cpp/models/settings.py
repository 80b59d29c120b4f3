"""GGUF files by name, and how llama.cpp is to run them."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from cactus_decoding.core.declared import Setting, check_fields
from cactus_decoding.core.spelling import parse

USUAL_CONTEXT_SIZE = 4096  # models are trained for up to a million tokens, whose keys and values no laptop holds


@dataclass(frozen=True)
class LlamaCppSettings:
    """How llama.cpp is to run a model."""

    # as many as the model was trained for, but at most 4,096, if None
    context_size: Annotated[int | None, Setting("that the cache holds", "tokens", ge=1)] = None
    gpu_layers: Annotated[int, Setting("that a GPU holds, -1 for all", "layers", ge=-1)] = -1
    # of the CPU; torch's own number, if None
    threads: Annotated[int | None, Setting("of the CPU", "threads", ge=1)] = None
    # how keys and values are stored: float16, which is llama.cpp's own choice, or float32, with which its attention is
    # slower and takes twice the memory
    cache: Annotated[Literal["float16", "float32"], Setting("how keys and values are stored")] = "float16"

    def __post_init__(self) -> None:
        check_fields(self)


def usual_threads() -> int:
    """Return how many threads torch would usually take, without waiting for its import."""
    given = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    if given.isdecimal() and int(given):
        return int(given)
    ours = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    files = [Path(f"/sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list") for number in ours]
    return len({each.read_text() if each.exists() else each for each in files})


class GgufFile(NamedTuple):
    """A model's file, or the first of several, and how to run it."""

    path: Path
    settings: LlamaCppSettings

    def with_threads(self, count: int | None) -> GgufFile:
        """Return the same with so many threads, or as many as is usual, where its own settings say nothing."""
        threads = self.settings.threads or count or usual_threads()
        return self._replace(settings=replace(self.settings, threads=threads))


def parse_gguf(name: str | Path) -> GgufFile | None:
    """Return the file of a name that ends in ``.gguf``, as text with settings after it; None for other names."""
    found = re.fullmatch(r"(.*\.gguf)(?::(.*))?", str(name), re.DOTALL | re.IGNORECASE)
    if found is None:
        return None
    return GgufFile(Path(found[1]), parse("setting", f"gguf:{found[2] or ''}", {"gguf": LlamaCppSettings}))
