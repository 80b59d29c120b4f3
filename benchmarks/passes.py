"""Where a pass's time goes, and a step's: kernels, transformers' Python, and ours.

    python benchmarks/passes.py --output FILE
    python benchmarks/passes.py --models bundled 0.04B --rounds 50 --output FILE

A pass's kernels are what its recording takes (`engines/transformers/recorded.py`), called by itself: the same calls of
PyTorch's, without Python. A twin (see twins.py) has a large vocabulary. Times are this thread's own, on one thread, in
microseconds: medians over rounds in which everything takes its turn. The caches hold ``--length`` tokens before it.
"""

from __future__ import annotations

import statistics
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from pairing import benchmark
from twins import SHAPES, twin, twin_pair

from cactus_decoding import load_pair, stream, zoo
from cactus_decoding.core.models.base import BaseCachedModel
from cactus_decoding.core.pair import Pair
from cactus_decoding.core.verification.walk import Verifier
from cactus_decoding.engines.transformers import recorded
from cactus_decoding.engines.transformers.cached_model import CachedModel
from cactus_decoding.engines.transformers.forward import GeneralForward
from cactus_decoding.zoo.word_problems import word_problems

MICRO = 1e6
PASSES = {"1 token": (1, 1), "8 tokens": (8, 8)}
"""Tokens of a pass, and rows of logits."""


def medians(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return the median microseconds of each, in turn with all others."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    order = [*calls.items()]
    for i in range(rounds + 3):
        for name, call in [*order[i % len(order) :], *order[: i % len(order)]]:
            began = time.thread_time()
            call()
            if i >= 3:
                taken[name].append(time.thread_time() - began)
    return {name: round(MICRO * statistics.median(each), 1) for name, each in taken.items()}


@torch.inference_mode()
def parts_of_a_pass(model: Any, count: int, rows: int, length: int, rounds: int) -> dict[str, float]:
    """Return microseconds of a pass: whole, as the model gives it and as it is replayed, and its parts."""
    config = model.config.get_text_config(decoder=True)
    replay = recorded.RecordedPass(model, config, lambda: GeneralForward(model, {}), count, rows)
    caches = {name: CachedModel(model) for name in ("model", "replayed")}
    text, block = [i % 1000 for i in range(3, 3 + length)], list(range(5, 5 + count))
    for cache in caches.values():
        cache.append(text, 1)
    own: Any = caches["model"]._forward
    again: Any = caches["replayed"]._forward
    again._recorded = _Always(replay)
    again.append(torch.tensor(block), length, rows)
    stores = [store for layer in again.layers for store in layer.with_room(length + count)]
    places, token_ids = replay.places(length), torch.tensor(block)
    inputs = {
        "input_ids": token_ids[None], "use_cache": True, "position_ids": torch.arange(length, length + count)[None],
        own._cache_argument: own._cache, "logits_to_keep": rows,
    }  # fmt: skip

    def of_transformers() -> None:
        model(**inputs)
        for layer in own.layers:
            layer.cut(count)

    def whole(cache: BaseCachedModel) -> Callable[[], None]:
        def read() -> None:
            cache.append(block, rows)
            cache.rollback(length)

        return read

    calls: dict[str, Callable[[], object]] = {
        "kernels": lambda: replay.compute(token_ids, places, stores),
        "transformers": of_transformers,
        "model": whole(caches["model"]),
        "replayed": whole(caches["replayed"]),
    }
    taken = medians(calls, rounds)
    kernels, theirs = taken["kernels"], taken["transformers"]
    return {
        "kernels": kernels,
        "transformers_python": round(theirs - kernels, 1),
        "our_python": round(taken["model"] - theirs, 1),
        "whole": taken["model"],
        "whole_replayed": taken["replayed"],
        "our_python_replayed": round(taken["replayed"] - kernels, 1),
    }


class _Always:
    """A recording that is there from the first pass."""

    def __init__(self, replay: recorded.RecordedPass) -> None:
        self._replay = replay

    def of(self, *_: object) -> recorded.RecordedPass:
        return self._replay


@contextmanager
def _timed(owner: Any, name: str, taken: list[float]) -> Iterator[None]:
    """Add up what a method takes."""
    usual = getattr(owner, name)

    def measured(*args: Any, **named: Any) -> Any:
        began = time.thread_time()
        try:
            return usual(*args, **named)
        finally:
            taken[0] += time.thread_time() - began

    setattr(owner, name, measured)
    try:
        yield
    finally:
        setattr(owner, name, usual)


def parts_of_a_step(pair: Pair, texts: Sequence[str], tokens: int, rules: Sequence[str]) -> dict[str, dict[str, float]]:
    """Return median microseconds of steps of six proposals, without those that read a prompt, by rule."""
    found = {}
    for rule in rules:
        steps: dict[str, list[float]] = {name: [] for name in PARTS}
        sums: dict[str, list[float]] = {name: [0.0] for name in ("draft", "target", "propose", "verify")}
        drafter: Any = pair.drafter
        with (
            _timed(drafter.model_cache, "append", sums["draft"]),
            _timed(pair.target, "append", sums["target"]),
            _timed(drafter, "propose", sums["propose"]),
            _timed(Verifier, "__call__", sums["verify"]),
        ):
            for seed, text in enumerate(texts):
                response = stream(pair, text, rule=rule, seed=seed, max_new_tokens=tokens, num_speculative_tokens=6)
                for i, (whole, parts) in enumerate(_each_step(response, sums)):
                    if i:  # the first reads the prompt
                        for name in PARTS:
                            steps[name].append(_part(name, whole, parts))
        found[rule] = {name: round(MICRO * statistics.median(each), 1) for name, each in steps.items()}
        found[rule]["num_steps"] = len(steps["whole"])
    return found


PARTS = ("draft_passes", "target_pass", "propose", "verify", "bookkeeping", "whole")


def _each_step(response: Any, sums: dict[str, list[float]]) -> Iterator[tuple[float, dict[str, float]]]:
    while True:
        for each in sums.values():
            each[0] = 0.0
        began = time.thread_time()
        if next(response, None) is None:
            return
        yield time.thread_time() - began, {name: each[0] for name, each in sums.items()}


def _part(name: str, whole: float, parts: dict[str, float]) -> float:
    return {
        "draft_passes": parts["draft"],
        "target_pass": parts["target"],
        "propose": parts["propose"] - parts["draft"],
        "verify": parts["verify"],
        "bookkeeping": whole - parts["propose"] - parts["target"] - parts["verify"],
        "whole": whole,
    }[name]


def measure(given: Namespace) -> Iterator[dict[str, Any]]:
    passes: dict[str, dict[str, dict[str, float]]] = {}
    steps: dict[str, Any] = {}
    bundled = load_pair()
    models: dict[str, Callable[[], Any]] = {
        "bundled draft": lambda: bundled.drafter.model,  # type: ignore[attr-defined]
        "bundled target": lambda: bundled.target.model,
    } | {name: lambda name=name: _twin(name) for name in SHAPES}  # type: ignore[misc]
    names = [
        each for name in given.models for each in (["bundled draft", "bundled target"] if name == "bundled" else [name])
    ]
    for name in names:
        model, rounds = models[name](), max(given.rounds // (10 if name == "0.5B" else 1), 5)
        passes[name] = {kind: parts_of_a_pass(model, *shape, given.length, rounds) for kind, shape in PASSES.items()}
        del model
        yield {"passes": passes, "steps": steps}
        for kind, row in passes[name].items():
            print(name, kind, row, flush=True)
    texts = [problem.prompt for _, problem in zip(range(given.problems), word_problems("test"), strict=False)]
    pairs: dict[str, Callable[[], Pair]] = {
        "1,003 tokens": lambda: bundled,
        "151,936 tokens": lambda: twin_pair(SHAPES["0.1B"], SHAPES["0.04B"], dtype=torch.float32, device="cpu"),
    }
    for name, make in pairs.items():
        pair = make()
        for every, frequent in (("by the model", 10**9), ("replayed", 2)):
            recorded.FREQUENT = frequent
            parts_of_a_step(pair, texts[:2], 40, ["lossless"])
            steps[f"{name}, {every}"] = parts_of_a_step(pair, texts, 200, given.rules)
            yield {"passes": passes, "steps": steps}
            print(name, every, steps[f"{name}, {every}"], flush=True)


def _twin(name: str) -> Any:
    from transformers import LlamaForCausalLM

    own = LlamaForCausalLM.from_pretrained(zoo.path("worded"), dtype=torch.float32)
    return twin(own, SHAPES[name], dtype=torch.float32, device="cpu")


if __name__ == "__main__":
    benchmark(
        __doc__, "passes", measure,
        models=(["bundled", "0.04B", "0.5B"], {"choices": ["bundled", *SHAPES]}),
        rules=["lossless", "cactus:delta=1", "clamped:width=2"],
        rounds=(300, "of each pass; a tenth of them for 0.5B"),
        length=(128, "tokens in the cache"),
        problems=20,
        threads=1,
    )  # fmt: skip
