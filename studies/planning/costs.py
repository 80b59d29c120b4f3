"""How long a replica's steps take: measured, or worked out from a GPU's bytes and operations."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from cactus_decoding.core.mistakes import check_choice, check_number, short_repr

SHAPE = '{"steps": {"LENGTH": {"BATCH": SECONDS, …}, …}, "prompt": SECONDS}'
"""How measured costs are written: seconds of a step by proposals and batch size, and what reading a prompt adds."""


@dataclass(frozen=True)
class StepTimes:
    """Seconds of a step by the number of requests that share it: linear between the sizes that are known.

    Below the smallest size a step takes as long as there; above the largest it grows as between the last two.
    """

    by_batch: Mapping[int, float]

    def __call__(self, batch: int) -> float:
        """Return the seconds of one step."""
        sizes, seconds = self._table
        if batch <= sizes[-1]:
            return float(np.interp(batch, sizes, seconds))
        slope = (seconds[-1] - seconds[-2]) / (sizes[-1] - sizes[-2]) if len(sizes) > 1 else seconds[-1] / sizes[-1]
        return float(seconds[-1] + max(slope, 0.0) * (batch - sizes[-1]))

    @cached_property
    def _table(self) -> tuple[list[int], list[float]]:
        sizes = sorted(self.by_batch)
        return sizes, [self.by_batch[size] for size in sizes]


@dataclass(frozen=True)
class ReplicaCosts:
    """Seconds of a replica's step by the number of proposals, 0 without a draft, and what a prompt adds to one."""

    steps: Mapping[int, StepTimes]
    prompt: float = 0.0


def read_costs(path: Path) -> ReplicaCosts:
    """Return measured costs from a JSON file: ``{"steps": {"8": {"1": 0.012, "16": 0.031}}, "prompt": 0.004}``."""
    try:
        content = json.loads(path.read_text())
        steps = {
            int(length): StepTimes({int(batch): float(seconds) for batch, seconds in table.items()})
            for length, table in content["steps"].items()
        }
        return ReplicaCosts(steps, float(content.get("prompt", 0.0)))
    except (ValueError, KeyError, AttributeError, TypeError):
        raise ValueError(f"{path}: costs must be written as {SHAPE}") from None


class Gpu(NamedTuple):
    """What a data sheet says: bytes a second of memory, and dense bfloat16 operations a second."""

    bandwidth: float
    operations: float


GPUS = {
    "a10g": Gpu(600e9, 70e12),
    "l4": Gpu(300e9, 121e12),
    "l40s": Gpu(864e9, 362e12),
    "a100": Gpu(2.039e12, 312e12),
    "h100": Gpu(3.35e12, 989e12),
    "h200": Gpu(4.8e12, 989e12),
    "b200": Gpu(8.0e12, 2250e12),
}
"""From NVIDIA's data sheets: SXM and 80 GB where there are several."""


@dataclass(frozen=True)
class Paper:
    """A replica that was never measured: one GPU, which reaches a share of its data sheet's limits.

    A pass over n tokens takes max(bytes moved / bandwidth, 2 parameters n / operations) / efficiency, and a step with
    k proposals k passes of the draft and one of the target over k + 1 tokens a request (the roofline of Williams et
    al. 2009). Bytes are the weights once, and each request's cache.

    ``target`` and ``draft`` are parameters that a token uses (a look-up has none), of so many ``weight_bytes``;
    ``cache_bytes`` are keys and values of a token in the target, of which a request has ``context`` on average.
    """

    gpu: str
    target: float
    draft: float = 0.0
    weight_bytes: float = 2.0
    cache_bytes: float = 0.0
    context: float = 0.0
    prompt: float = 0.0
    efficiency: float = 0.6

    def __post_init__(self) -> None:
        check_choice("gpu", self.gpu, tuple(GPUS))
        check_number("target", self.target, 0, math.inf, low_open=True, high_open=True)
        check_number("weight_bytes", self.weight_bytes, 0, 8, low_open=True)
        check_number("efficiency", self.efficiency, 0, 1, low_open=True)
        for name in ("draft", "cache_bytes", "context", "prompt"):
            check_number(name, getattr(self, name), 0, math.inf, high_open=True)

    def costs(self, lengths: Collection[int], *, max_batch: int) -> ReplicaCosts:
        """Return the costs of steps of some numbers of proposals, up to a batch size."""
        sizes = sorted({*(2**power for power in range(max_batch.bit_length())), max_batch})
        reading = 2 * self.prompt * (self.target + self.draft) / GPUS[self.gpu].operations / self.efficiency
        steps = {length: StepTimes({size: self._step(length, size) for size in sizes}) for length in lengths}
        return ReplicaCosts(steps, reading)

    def _step(self, length: int, batch: int) -> float:
        cache = batch * self.context * self.cache_bytes
        verifying = self._pass(self.target, batch * (length + 1), cache)
        return verifying + length * self._pass(self.draft, batch, 0.0)

    def _pass(self, parameters: float, tokens: int, cache: float) -> float:
        gpu = GPUS[self.gpu]
        moved = parameters * self.weight_bytes + cache
        return max(moved / gpu.bandwidth, 2 * parameters * tokens / gpu.operations) / self.efficiency


def read_paper(text: str) -> Paper:
    """Return the replica that a text such as ``gpu=h100,target=8e9,draft=0.6e9`` describes."""
    names, given = Paper.__dataclass_fields__, dict[str, str]()
    for part in text.split(","):
        name, _, value = (each.strip() for each in part.partition("="))
        if name not in names or name in given or not value:
            raise ValueError(f"a GPU on paper must be given by {', '.join(names)}, each NAME=VALUE and at most once, "
                             f"but {short_repr(part)} is given")  # fmt: skip
        given[name] = value
    if missing := [name for name in ("gpu", "target") if name not in given]:
        raise ValueError(f"a GPU on paper needs {' and '.join(missing)}, as in gpu=h100,target=8e9")
    return Paper(given.pop("gpu"), **{name: float(value) for name, value in given.items()})
