"""What a draft's forward pass costs beside its target's."""

from __future__ import annotations

import statistics
import time

import torch

from cactus_decoding.core.drafting.model import ModelDrafter
from cactus_decoding.core.pair import Pair
from cactus_decoding.engines.transformers.cached_model import CachedModel
from cactus_decoding.zoo.word_problems import word_problems

_PASSES = 8


@torch.inference_mode()
def pass_ratio(pair: Pair, *, rounds: int = 100) -> float:
    """Return how long the draft takes for one more token behind a solution, as a fraction of the target's time.

    Both are timed in turn, a few passes at once, and the medians are compared.
    """
    if not isinstance(pair.drafter, ModelDrafter):
        raise TypeError(f"the draft must be a model, but is {type(pair.drafter).__name__}")
    problem = next(word_problems("validation"))
    ids = pair.tokenizer(f"{problem.prompt} {problem.solution}").input_ids
    models = [CachedModel(pair.drafter.model), CachedModel(pair.target.model)]
    seconds: tuple[list[float], list[float]] = ([], [])
    for model in models:
        model.append(ids, rows=1)
    for _ in range(rounds):
        for model, taken in zip(models, seconds, strict=True):
            model.rollback(len(ids))
            start = time.perf_counter()
            for _ in range(_PASSES):
                model.append(ids[-1:], rows=1)
            taken.append(time.perf_counter() - start)
    return statistics.median(seconds[0]) / statistics.median(seconds[1])
