"""What the plug-in costs vLLM, and what relaxing gains: ratios to stock requests of the same engine, in pairs.

    .venv-vllm/bin/python benchmarks/vllm_overhead.py --output docs/results/vllm_overhead.json

A pair sends the same prompts once without a rule and once with one, in turns, for a fixed number of tokens each; the
result is the median over pairs of the ratio of their output tokens per second. On the CPU with the bundled models a
step takes milliseconds, so what the plug-in adds weighs far more here than with models that need a GPU.
"""

from __future__ import annotations

import os
import statistics
import time
from argparse import Namespace
from collections.abc import Iterator
from typing import Any

from pairing import benchmark

from cactus_decoding import zoo

RULES = ("cactus:delta=0", "cactus:delta=0.5", "cactus:delta=2", "cactus:delta=2,solver=exact", "clamped:width=1")
QUESTION = "Question: Lily picks 9 pears and eats 2. How many pears are left?\nAnswer:"
ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "HF_HUB_OFFLINE": "1"}


def measure(given: Namespace) -> Iterator[dict[str, Any]]:
    os.environ.update(ENVIRONMENT)
    import vllm

    engine = vllm.LLM(
        model=str(zoo.path("target")),
        speculative_config={"model": str(zoo.path("draft")), "num_speculative_tokens": 4},
        enforce_eager=True, max_model_len=256, max_num_seqs=given.requests, gpu_memory_utilization=0.2,
        generation_config="vllm", dtype="float32",
    )  # fmt: skip

    def tokens_per_second(rule: str | None) -> float:
        asked = None if rule is None else {"acceptance_rule": rule}
        params = vllm.SamplingParams(temperature=1.0, max_tokens=given.tokens, ignore_eos=True, extra_args=asked)
        begin = time.perf_counter()
        answers = engine.generate([QUESTION] * given.requests, params, use_tqdm=False)
        seconds = time.perf_counter() - begin
        return sum(len(answer.outputs[0].token_ids) for answer in answers) / seconds

    for rule in (None, *RULES):
        tokens_per_second(rule)  # warm-up
    ratios: dict[str, list[float]] = {rule: [] for rule in RULES}
    for pair in range(given.pairs):
        for rule in RULES:
            order = (None, rule) if pair % 2 else (rule, None)  # neither is always first
            speed = {which: tokens_per_second(which) for which in order}
            ratios[rule].append(speed[rule] / speed[None])
    throughput = {
        rule: {"median_ratio_to_stock": statistics.median(values), "least": min(values), "most": max(values)}
        for rule, values in ratios.items()
    }
    for rule, one in throughput.items():
        print(f"{rule:32} {one['median_ratio_to_stock']:.3f}  ({one['least']:.3f} to {one['most']:.3f})")
    yield {"throughput": throughput, "ratios": ratios, "question": QUESTION, "vllm": vllm.__version__}


if __name__ == "__main__":
    benchmark(__doc__, "vllm_overhead", measure, pairs=15, requests=16, tokens=48)
