"""What the plug-in adds to a step of vLLM: seconds of a step with a rule over those of one without, in pairs.

    .venv-vllm/bin/python benchmarks/vllm_overhead.py --output vllm_overhead_bundled.json
    .venv-vllm/bin/python benchmarks/vllm_overhead.py --target T --draft D --dtype bfloat16 --output vllm_overhead.json

It needs an environment with vLLM, and a machine with nothing else to do. All requests of an engine ask for the same.
Their prompts are read, and then steps are timed, in which the target verifies the proposals of all requests. So it
does not matter how many are accepted. Each rule takes turns with requests that ask for nothing.
"""

from __future__ import annotations

import statistics
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any

import torch
from pairing import benchmark
from vllm_environment import set_environment

from cactus_decoding import zoo
from cactus_decoding.engines.vllm import offline
from cactus_decoding.engines.vllm.schedule import QUESTIONS, give_up

NOTHING: dict[str, Any] = {}
ASKED: dict[str, dict[str, Any]] = {
    "lossless, with a report": {"acceptance_report": True},
    "Cactus 1": {"acceptance_rule": "cactus:delta=1"},
    "Cactus 1 on a budget": {"acceptance_rule": "cactus:delta=1", "budget": 100.0},
    "clamped 2": {"acceptance_rule": "clamped:width=2"},
    "clamped 2, digits protected": {"acceptance_rule": "clamped:width=2", "protect": "digits"},
    "clamped 2 on a budget": {"acceptance_rule": "clamped:width=2", "budget": 100.0},
}
PAGE = 512  # tokens that a request may have


def step_seconds(engine: Any, asked: Mapping[str, Any], given: Namespace, names: Iterator[int]) -> float:
    """Return the seconds of a step in which all requests have proposals."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    params = SamplingParams(
        temperature=1.0, max_tokens=PAGE, ignore_eos=True, output_kind=RequestOutputKind.DELTA, extra_args={**asked}
    )
    running = [str(next(names)) for _ in range(given.requests)]
    for place, name in enumerate(running):
        engine.add_request(name, f"Question: {QUESTIONS[place % len(QUESTIONS)]}\nAnswer:", params)
    for _ in range(2):  # reads the prompts, and proposes for the first time
        engine.step()
    begun = time.perf_counter()
    for _ in range(given.steps):
        engine.step()
    seconds = (time.perf_counter() - begun) / given.steps
    give_up(engine, running)
    return seconds


def measure(given: Namespace) -> Iterator[dict[str, Any]]:
    set_environment(torch.get_num_threads())
    import vllm

    target, draft = given.target or str(zoo.path("target")), given.draft or str(zoo.path("draft"))
    engine = offline.start_engine(
        offline.engine_config(target, draft, given.proposals, {"dtype": given.dtype, "max_model_len": PAGE},
                              max_num_seqs=given.requests),
        offline.StepCounts(),
    )  # fmt: skip
    names = count()
    vocabulary = engine.model_config.get_vocab_size()
    for asked in (NOTHING, *ASKED.values()):
        step_seconds(engine, asked, given, names)  # warm-up
    pairs: dict[str, list[list[float]]] = {name: [] for name in ASKED}
    for turn in range(given.pairs):
        for name, asked in ASKED.items():
            order = (NOTHING, asked) if turn % 2 else (asked, NOTHING)  # neither is always first
            seconds = [step_seconds(engine, each, given, names) for each in order]
            pairs[name].append(seconds if turn % 2 else seconds[::-1])
        found = {name: summary(each) for name, each in pairs.items()}
        print("; ".join(f"{name} {each['ratio'][0]:.3f}" for name, each in found.items()), flush=True)
        yield {"added": found, "pairs": pairs, "vocabulary": vocabulary, "vllm": vllm.__version__}


def summary(pairs: list[list[float]]) -> dict[str, Any]:
    """Return the median ratio with its quartiles, and the median seconds without and with a rule."""
    ratios = [own / plain for plain, own in pairs]
    quartiles = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else [ratios[0]] * 3
    seconds = [statistics.median(each) for each in zip(*pairs, strict=True)]
    return {"ratio": [quartiles[1], quartiles[0], quartiles[2]], "seconds": seconds}


if __name__ == "__main__":
    benchmark(
        __doc__,
        "vllm_overhead",
        measure,
        target=(None, "a model that vLLM reads; the bundled one, if left out"),
        draft=(None, "its draft, which draws its proposals"),
        dtype="float32",
        proposals=(3, "per step"),
        requests=(8, "at once"),
        steps=(4, "that are timed together"),
        pairs=(15, "of each rule"),
    )
