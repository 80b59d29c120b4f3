"""Whether vLLM's own FLy keeps the tokens that `verification="fly"` keeps: its kernels, interpreted, on random steps.

    python -m studies.rules.fly_kernels FILE             compares, writes the result file, and says it in docs/fly.md
    python -m studies.rules.fly_kernels --only-render    says it again, from the result file

FILE is `vllm/v1/spec_decode/fly.py` of an unpacked wheel (`pip download --no-deps vllm==0.33.0`, a zip file): that
version refuses FLy on CPUs, but Triton, which must be installed, runs the two kernels of this file there.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
from argparse import Namespace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from cactus_decoding.core.rules import Lossless
from cactus_decoding.core.schemes import FlyKnobs
from cactus_decoding.core.types import Proposal, StepRows
from cactus_decoding.core.verification.fly import fly
from cactus_decoding.core.verification.tree import RandomNumbers, Tree
from studies.study import study

RESULTS, PAGE = Path(__file__).with_name("results") / "fly_kernels.json", "fly.md"
VOCABULARY, PROPOSALS, STEPS = 5, 6, 500


def kernels(path: str) -> Any:
    """Import vLLM's file with Triton's interpreter and without vLLM."""
    os.environ["TRITON_INTERPRET"] = "1"
    import triton

    stand_in = ModuleType("vllm.triton_utils")
    vars(stand_in).update(triton=triton, tl=triton.language)
    sys.modules |= {"vllm": ModuleType("vllm"), "vllm.triton_utils": stand_in}
    spec = importlib.util.spec_from_file_location("fly_of_vllm", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def theirs(vllm: Any, q: Tensor, p: Tensor, tokens: Tensor, numbers: Tensor, knobs: FlyKnobs, greedy: bool) -> int:
    """Return how many proposals vLLM's sampler keeps, once its kernel has changed what the test reads."""
    entropy, numbers, best = vllm.compute_fly_entropy(q, knobs.top_k), numbers.clone(), q.argmax(-1)
    shared = (entropy, torch.tensor([greedy]), q.shape[-1], knobs.threshold)
    steps = torch.tensor([len(tokens)], dtype=torch.int32)
    if greedy:
        kernel = vllm.apply_fly_greedy_acceptance_kernel[1,]
        kernel(steps, tokens, best, q.log(), *shared, FLY_WINDOW_SIZE=knobs.window)
        kept = best == tokens
    else:
        kernel = vllm.apply_fly_random_acceptance_kernel[1,]
        kernel(steps, tokens, p, q, numbers, *shared, NO_DRAFT_PROBS=False, FLY_WINDOW_SIZE=knobs.window)
        kept = (q / p).gather(-1, tokens[:, None])[:, 0] >= numbers
    return int(kept.long().cumprod(0).sum())


def ours(q: Tensor, p: Tensor, tokens: Tensor, numbers: Tensor, knobs: FlyKnobs, greedy: bool) -> int:
    """Return how many this package keeps."""

    def one_hot(rows: Tensor, *_: object) -> Tensor:
        return torch.nn.functional.one_hot(rows.argmax(-1), rows.shape[-1]).double()

    proposal = Proposal(tokens.tolist(), one_hot(p) if greedy else p)
    rows = StepRows(torch.cat([q, q[-1:]]), [], proposal, one_hot if greedy else lambda x, *_: x, lambda x, *_: x)
    chance = RandomNumbers(torch.cat([numbers, numbers[:1]]), len(tokens))
    return len(fly(Tree(rows), lambda position: Lossless(), chance, knobs, greedy=greedy).path)


def compare(vllm: Any) -> dict[str, dict[str, int]]:
    """Return of how many random steps both keep as many proposals, sampled and at temperature 0."""
    generator, found = torch.Generator().manual_seed(0), {}
    for greedy in (False, True):
        same, longer = 0, 0
        for step in range(STEPS):
            q = torch.randn(PROPOSALS, VOCABULARY, dtype=torch.float64, generator=generator).mul(2).softmax(-1)
            noise = torch.randn(q.shape, dtype=torch.float64, generator=generator)
            p = (q.log() + noise * 0.7).softmax(-1)
            tokens = p.argmax(-1) if greedy else torch.multinomial(p, 1, generator=generator)[:, 0]
            given = q, p, tokens, torch.rand(PROPOSALS, dtype=torch.float64, generator=generator)
            knobs = FlyKnobs(window=1 + step % 3, threshold=0.3 * (step % 4))
            kept = ours(*given, knobs, greedy)
            same += kept == theirs(vllm, *given, knobs, greedy)
            longer += kept > ours(*given, FlyKnobs(threshold=float("inf")), greedy)
        found["temperature 0" if greedy else "sampled"] = {"steps": STEPS, "same": same, "more than losslessly": longer}
    return found


def measure(given: Namespace) -> dict[str, Any]:
    """Compare both, and say with which file."""
    sha256 = hashlib.sha256(given.file.read_bytes()).hexdigest()
    return {"ways": compare(kernels(str(given.file))), "sha256": sha256}


def shown(result: dict[str, Any]) -> dict[str, str]:
    """Return in how many steps both keep as many."""
    ways = result["ways"].values()
    same, steps, longer = (sum(way[key] for way in ways) for key in ("same", "steps", "more than losslessly"))
    line = (
        f"Both kept the same number of proposals in {same:,} of {steps:,} random steps, and in {longer:,} of them more "
        "than the lossless test."
    )
    return {"kernels": line}


if __name__ == "__main__":
    file = (None, {"type": Path, "nargs": "?", "positional": True})
    study(__doc__, RESULTS, PAGE, measure, shown, needed=["file"], file=file)
