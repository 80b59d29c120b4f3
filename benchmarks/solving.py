"""Time a solve of the clamped ratio, and audits, of one row against its log-sum-exp."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from typing import Any

import torch
from pairing import TIMED, Times, benchmark, paired, told

from cactus_decoding.core.audit import audit
from cactus_decoding.core.divergences.ratio_clamp import clamp_bounds

AUDITED = (
    "lossless", "cactus:delta=1", "cactus:delta=0.01", "ensemble:weight=0.3", "lenience:lenience=0.5",
    "clamped:width=1", "clamped:max_kl=0.1", "typical", "top_k:k=20", "cactus:delta=1,solver=exact",
)  # fmt: skip
CASES = (
    (151_936, 3.0, 1.0), (151_936, 1.0, 0.3), (151_936, 6.0, 2.0),
    *((vocabulary, 3.0, 1.0) for vocabulary in (4_000, 16_000, 32_000, 64_000, 128_000, 256_000)),
)  # fmt: skip
"""Vocabulary, how steep a row is, and how far apart both are."""


def times_of(vocabulary: int, scale: float, noise: float, rounds: int, clock: str) -> Times:
    """Return the times for one pair of rows."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(vocabulary, generator=generator) * scale
    target = logits.softmax(-1)
    draft = (logits + noise * torch.randn(vocabulary, generator=generator)).softmax(-1)
    functions = {"logsumexp": lambda: logits.logsumexp(-1)}
    for width in (0.1, 1.0, 3.0):
        functions[f"solve, width={width}"] = lambda width=width: clamp_bounds(target, draft, width=width)
    for cap in (0.01, 0.1):
        functions[f"solve, max_kl={cap}"] = lambda cap=cap: clamp_bounds(target, draft, max_kl=cap)
    for rule in AUDITED:
        functions[f"audit, {rule}"] = lambda rule=rule: audit(rule, target, draft)
    return paired(functions, rounds, clock)


def measure(given: Namespace) -> Iterator[dict[str, Any]]:
    results = []
    for case in CASES:
        shape = dict(zip(("vocabulary", "logits' standard deviation", "draft's noise"), case, strict=True))
        results.append(told(shape, times_of(*case, given.rounds, given.clock)))
        yield {"results": results}


if __name__ == "__main__":
    benchmark(__doc__, "solving", measure, rounds=30, **TIMED)
