"""Time of a whole step over that of its forward passes alone, on random models of a real size; and on long contexts."""

from __future__ import annotations

import json
import statistics
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

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
    steps = decode(
        cached,
        drafter,
        prompt,
        request.verifier(to_probs, SamplingFn(SamplingParams()), sampling),
        to_probs,
        length=request.num_speculative_tokens,
        max_length=context + 2 * (rounds + 2) * (proposals + 1) + 8,
        stopping_criteria=lambda ids: False,
        generator=torch.Generator().manual_seed(0),
    )
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

    wall, cpu = (
        in_turn({
            "step": lambda: next(steps), "target forward": target_forward, "draft forwards": draft_forwards,
            "target forward of transformers": transformers_forward,
        }, rounds, clock)
        for clock in ("wall", "process")
    )  # fmt: skip
    return {"context": context, "proposals": proposals, "wall": _ratios(wall), "cpu": _ratios(cpu)}


def _ratios(times: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    def ratio(above: Iterable[float], below: Iterable[float]) -> float:
        return round(statistics.median(a / b for a, b in zip(above, below, strict=True)), 3)

    own, theirs = times["target forward"], times["target forward of transformers"]
    forwards = [target + draft for target, draft in zip(own, times["draft forwards"], strict=True)]
    return {
        "ms": {name: round(statistics.median(each) * 1e3, 2) for name, each in times.items()},
        "step over its forwards": ratio(times["step"], forwards),
        "transformers' target forward over ours": ratio(theirs, own),
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
