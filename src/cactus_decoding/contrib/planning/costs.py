"""How long a replica's steps take: measured, or worked out from a GPU's bytes and operations."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np

from cactus_decoding.arguments.checks import shown
from cactus_decoding.arguments.knobs import Knob, check_knobs
from cactus_decoding.arguments.spelling import parse
from cactus_decoding.files.jsonl import read_json

_SHAPE = '{"steps": {"LENGTH": {"BATCH": SECONDS, …}, …}, "prompt": SECONDS}'


@dataclass(frozen=True)
class StepTimes:
    """Seconds of a step by the number of requests that share it: linear between the sizes that are known.

    `PassTimes` is of one request alone. Below the smallest size a step takes as long as there; above the largest it
    grows as between the last two.

    Example:
        >>> times = StepTimes({1: 0.010, 4: 0.016})
        >>> [round(times(batch), 6) for batch in (1, 2, 8)]
        [0.01, 0.012, 0.024]
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
    content = read_json(path)
    if not isinstance(content, dict) or not isinstance(content.get("steps"), dict) or not content["steps"]:
        raise ValueError(f"{path}: costs are written as {_SHAPE}")
    if unknown := content.keys() - {"steps", "prompt"}:
        raise ValueError(f"{path}: costs are written as {_SHAPE}, without {shown(min(unknown))}")
    steps = {}
    for length, table in content["steps"].items():
        if not isinstance(table, dict) or not table:
            raise ValueError(
                f"{path}: costs are written as {_SHAPE}, but steps of length {length!r} are {shown(table)}"
            )
        by_batch = {_count(path, size, 1): _seconds(path, seconds) for size, seconds in table.items()}
        steps[_count(path, length, 0)] = StepTimes(by_batch)
    prompt = content.get("prompt", 0.0)
    return ReplicaCosts(steps, 0.0 if prompt == 0 and prompt is not False else _seconds(path, prompt))


def _count(path: Path, text: str, least: int) -> int:
    if (
        not re.fullmatch(r"0|[1-9][0-9]{0,8}", text) or int(text) < least
    ):  # one spelling each, so that none stands twice
        raise ValueError(
            f"{path}: a length or batch size must be a whole number of at least {least}, but is {shown(text)}"
        )
    return int(text)


def _seconds(path: Path, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= sys.float_info.max:
        raise ValueError(f"{path}: a time must be a positive number of seconds, but is {shown(value)}")
    return float(value)


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

    Example:
        >>> costs = Paper("h100", target=8e9, draft=0.6e9, efficiency=1.0).costs({4}, max_batch=64)
        >>> round(1000 * costs.steps[4](1), 2)  # ms: 16 GB and four times 1.2 GB, at 3.35 TB/s
        6.21
    """

    gpu: Annotated[Literal["a10g", "l4", "l40s", "a100", "h100", "h200", "b200"], Knob("of one replica")]
    target: Annotated[float, Knob("parameters that a token of the target uses", gt=0, lt=math.inf)]
    draft: Annotated[float, Knob("likewise; 0: proposals take no time (look-up)", ge=0, lt=math.inf)] = 0.0
    weight_bytes: Annotated[float, Knob("of a parameter: 2 in bfloat16, 1 in 8 bits", "bytes", gt=0, le=8)] = 2.0
    cache_bytes: Annotated[float, Knob("keys and values of a token in the target", "bytes", ge=0, lt=math.inf)] = 0.0
    context: Annotated[float, Knob("of a request in the cache, on average", "tokens", ge=0, lt=math.inf)] = 0.0
    prompt: Annotated[float, Knob("of a request, on average", "tokens", ge=0, lt=math.inf)] = 0.0
    efficiency: Annotated[float, Knob("share of the limits that is reached", gt=0, le=1)] = 0.6

    def __post_init__(self) -> None:
        check_knobs(self)

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


def costs_file(text: str) -> Path | None:
    """Return the file that costs are named by; None for a GPU on paper.

    Example:
        >>> costs_file("paper:gpu=h100,target=8e9"), costs_file("papers.json").name
        (None, 'papers.json')
    """
    return None if text.partition(":")[0].strip() == "paper" else Path(text)


def parse_costs(text: str, lengths: Collection[int], *, max_batch: int) -> ReplicaCosts:
    """Return the costs that a text names: a JSON file of measured ones, or ``paper:gpu=…,target=…``."""
    if (path := costs_file(text)) is not None:
        return read_costs(path)
    return parse("costs", text, {"paper": Paper}).costs(lengths, max_batch=max_batch)
