"""Time of a whole step over that of its forward passes alone, on random models of a real size; and on long contexts."""

from __future__ import annotations

import json
import statistics
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from pairing import benchmark, in_turn
from shapes import VOCABULARY, narrow_draft, qwen3
from transformers import DynamicCache, PreTrainedModel

from cactus_decoding import ModelDrafter, Request, SamplingParams
from cactus_decoding.core.loop import decode
from cactus_decoding.core.sampling.params import SamplingFn
from cactus_decoding.engines.transformers.cached_model import CachedModel


def times_of(
    target: PreTrainedModel, draft: PreTrainedModel, context: int, proposals: int, rounds: int
) -> dict[str, Any]:
    """Return medians over rounds of a step, and of its forward passes alone, in milliseconds of wall and CPU time.

    In every round each is timed once, in turn, after the same context; first by the one clock, then by the other.
    """
    prompt = torch.randint(VOCABULARY, (context,), generator=torch.Generator().manual_seed(0)).tolist()
    sampling = SamplingParams(temperature=0.6, top_p=0.95, top_k=20)
    request, to_probs = Request(sampling=sampling, num_speculative_tokens=proposals), SamplingFn(sampling)
    cached, drafter = CachedModel(target), ModelDrafter(draft)
    verifier = request.verifier(to_probs, SamplingFn(SamplingParams()), sampling)
    steps = decode(
        cached, drafter, prompt, verifier, to_probs, length=request.num_speculative_tokens,
        max_length=context + 2 * (rounds + 2) * (proposals + 1) + 8, stopping_criteria=lambda ids: False,
        generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    next(steps)  # reads the prompt
    cache = DynamicCache(config=target.config)
    # the content of a cache does not matter for time: this saves reading the prompt again
    for layer in range(target.config.num_hidden_layers):
        shape = (1, target.config.num_key_value_heads, context, target.config.head_dim)
        cache.update(torch.randn(shape).bfloat16(), torch.randn(shape).bfloat16(), layer)
    block = prompt[: proposals + 1]

    def target_forward() -> None:
        length = cached.length
        cached.append(block, rows=proposals + 1)
        cached.rollback(length)

    def draft_forwards() -> None:
        length = drafter._model.length
        for token in block[:proposals]:
            drafter._model.append([token], rows=1)
        drafter._model.rollback(length)

    @torch.inference_mode()
    def transformers_forward() -> None:
        target(input_ids=torch.tensor([block]), past_key_values=cache, use_cache=True)
        cache.crop(-len(block))

    functions = {
        "step": lambda: next(steps), "target forward": target_forward, "draft forwards": draft_forwards,
        "target forward of transformers": transformers_forward,
    }  # fmt: skip
    wall, cpu = (ratios(in_turn(functions, rounds, clock)) for clock in ("wall", "process"))
    return {"context": context, "proposals": proposals, "wall": wall, "cpu": cpu}


def ratios(times: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    step, target, draft, theirs = map(np.array, times.values())
    return {
        "ms": {name: round(statistics.median(each) * 1e3, 2) for name, each in times.items()},
        "step over its forwards": round(float(np.median(step / (target + draft))), 3),
        "transformers' target forward over ours": round(float(np.median(theirs / target)), 3),
    }


def measure(given: Namespace) -> Iterator[dict[str, Any]]:
    target, draft, results = qwen3(torch.bfloat16), narrow_draft(torch.bfloat16), []
    for context in given.contexts:
        for proposals in given.proposals:
            results.append(times_of(target, draft, context, proposals, given.rounds))
            print(json.dumps(results[-1]), flush=True)
            yield {"results": results}


if __name__ == "__main__":
    contexts = [128, 1024, 8192]
    benchmark(__doc__, "end_to_end_step", measure, contexts=contexts, proposals=[6], rounds=20, threads=2)
