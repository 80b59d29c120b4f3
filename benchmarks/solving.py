"""Time a solve of the clamped ratio, and audits, of one row against its log-sum-exp."""

from __future__ import annotations

import argparse

import torch
from pairing import add_arguments, paired, write

from cactus_decoding.core.audit import audit
from cactus_decoding.core.divergences.ratio_clamp import clamp_bounds

AUDITED = (
    "lossless",
    "cactus:delta=1",
    "cactus:delta=0.01",
    "ensemble:weight=0.3",
    "lenience:lenience=0.5",
    "clamped:width=1",
    "clamped:max_kl=0.1",
    "typical",
    "top_k:k=20",
    "cactus:delta=1,solver=exact",
)


def measure(vocabulary: int, scale: float, noise: float, rounds: int, clock: str) -> dict[str, dict[str, float]]:
    """Return the times for one pair of rows, by how steep they are and how far apart."""
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


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser, rounds=30)
    parser.add_argument("--output", default="solving", help="name of the result file, without its ending")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    cases = [(151_936, 3.0, 1.0), (151_936, 1.0, 0.3), (151_936, 6.0, 2.0)]
    cases += [(vocabulary, 3.0, 1.0) for vocabulary in (4_000, 16_000, 32_000, 64_000, 128_000, 256_000)]
    results = []
    for vocabulary, scale, noise in cases:
        times = measure(vocabulary, scale, noise, arguments.rounds, arguments.clock)
        shape = {"vocabulary": vocabulary, "logits' standard deviation": scale, "draft's noise": noise}
        results.append({**shape, "times": times})
        print(shape)
        for name, time in times.items():
            print(f"  {name:36} {time['ms']:9.3f} ms   {time['ratio']:8.2f} x logsumexp")
    write(arguments.output, vars(arguments), results)


if __name__ == "__main__":
    main()
