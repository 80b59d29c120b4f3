"""bfloat16 beside float32 on this processor, one thread, by its clock: `python benchmarks/precision.py`

The bundled pair answers word problems and trains its draft by 20 steps; and one matrix of a layer, of models from small
to 1.5B, is multiplied by 1 and by 64 rows. What `fastest_dtype` takes for so many weights stands beside the times.
"""

from __future__ import annotations

import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from pairing import benchmark, paired

from cactus_decoding import load_pair, stream
from cactus_decoding.core.models.loading import SMALL, fastest_dtype, instructions
from cactus_decoding.lab.training import TrainingSettings, train_draft
from cactus_decoding.zoo.word_problems import EXAMPLES

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
SHAPES = {
    "4 million weights": (1024, 256, 4_000_000),
    "0.5B": (4864, 896, 494_000_000),
    "1.5B": (8960, 1536, 1_540_000_000),
}


def answering(dtype: torch.dtype, tokens: int) -> float:
    """Return tokens per processor second of the bundled pair, six proposals, behind the prompt."""
    pair, made, seconds = load_pair(dtype=dtype), 0, 0.0
    for seed, example in enumerate(EXAMPLES[:3]):
        response = stream(pair, example.prompt, seed=seed, max_new_tokens=tokens)
        next(response)
        began = time.process_time()
        made += sum(outcome.num_emitted for outcome in response)
        seconds += time.process_time() - began
    return made / seconds


def training(bfloat16: bool, steps: int) -> float:
    """Return processor seconds of a step of the bundled draft's training, and of what goes with it."""
    asked = {"draft": "bundled:worded", "problems": 40, "batch_size": 4, "evaluate_every": steps, "held_out": 2}
    settings = TrainingSettings("bundled", "word_problems:split=train", steps=steps, bfloat16=bfloat16, **asked)  # type: ignore[arg-type]
    began, marks = time.process_time(), dict[str, float]()

    def report(stage: str, done: int, total: int, remark: str) -> None:
        if stage == "Training" and done in (1, total):
            marks[str(done)] = time.process_time() - began

    with tempfile.TemporaryDirectory() as folder:
        train_draft(settings, Path(folder) / "draft", report)
    return (marks[str(steps)] - marks["1"]) / (steps - 1)


def multiplying(shape: tuple[int, int, int], rows: int, rounds: int) -> dict[str, float]:
    """Return milliseconds of a layer's matrix and so many rows, in each type."""
    matrices = {name: torch.randn(shape[:2], dtype=dtype) for name, dtype in DTYPES.items()}
    given = {name: torch.randn(rows, shape[1], dtype=dtype) for name, dtype in DTYPES.items()}
    calls = {name: lambda name=name: given[name] @ matrices[name].T for name in DTYPES}
    return {name: each["ms"] for name, each in paired(calls, rounds, "processor").items()}


def measure(given: Namespace) -> Iterator[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for name, shape in SHAPES.items():
        taken = fastest_dtype(torch.bfloat16, shape[2], torch.device("cpu"), memory=1e12)
        for count in (1, 64):
            found = multiplying(shape, count, given.rounds)
            rows.append({"what": f"a layer's matrix, {name}, {count} rows, ms", "taken": str(taken)} | found)
    rows.append({"what": "bundled pair, tokens/s"} | {n: answering(d, given.tokens) for n, d in DTYPES.items()})
    trained = {name: 1000 * training(name == "bfloat16", given.steps) for name in DTYPES}
    rows.append({"what": "a step of training its draft, ms"} | trained)
    yield {"results": rows, "small": SMALL, "instructions": sorted(each for each in instructions() if "bf16" in each)}


if __name__ == "__main__":
    benchmark(__doc__, "precision", measure, tokens=64, steps=20, rounds=60, threads=1)
