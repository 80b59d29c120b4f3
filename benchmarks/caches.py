"""Time passes over the same tokens with several caches, in turn in one process.

Ways: ``transformers``, its `DynamicCache` and its attention; ``rows``, the same with rows in place; and
``rows, keys unrepeated``, what the package does. The model has the shape of Qwen3-0.6B and random weights, the context
random keys and values. Times are of the process, on one thread; ratios are medians over rounds of every way.
"""

from __future__ import annotations

import statistics
from argparse import Namespace
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from pairing import benchmark, in_turn
from shapes import VOCABULARY, qwen3
from transformers import DynamicCache, PreTrainedModel

from cactus_decoding.core.models.base import Forward
from cactus_decoding.engines.transformers.compatibility import remove_last
from cactus_decoding.engines.transformers.forward import GeneralForward


def ways(model: PreTrainedModel) -> dict[str, Forward]:
    """Return empty passes by name."""
    plain, rows = GeneralForward(model, {}), GeneralForward(model, {})
    plain._cache = DynamicCache(config=model.config)
    for each in (plain, rows):
        each._shares_keys = False
    plain._fills_rows = plain._in_place = False
    return {"transformers": plain, "rows": rows, "rows, keys unrepeated": GeneralForward(model, {})}


def fill(forward: Any, keys: torch.Tensor) -> None:
    """Put the same keys and values into every layer."""
    remove_last(forward._cache, forward._cache.get_seq_length())
    for layer in forward._cache.layers:
        layer.update(keys, keys)


def summary(seconds: dict[str, list[float]], base: str) -> dict[str, Any]:
    """Return the median milliseconds of each way, and how fast it is beside another: 2 is twice as fast."""
    shares = {name: [b / own for b, own in zip(seconds[base], each, strict=True)] for name, each in seconds.items()}
    return {
        "ms": {name: round(1e3 * statistics.median(each), 2) for name, each in seconds.items()},
        f"speed beside {base}": {name: round(statistics.median(each), 3) for name, each in shares.items()},
    }


@torch.inference_mode()
def passes(given: Namespace) -> Iterator[dict[str, Any]]:
    for dtype in given.dtypes:
        model = qwen3(getattr(torch, dtype), given.layers)
        named, config = ways(model), model.config
        for context in given.contexts:
            shape = 1, config.num_key_value_heads, context, config.head_dim
            keys = torch.randn(*shape, dtype=model.dtype)
            for forward in named.values():
                fill(forward, keys)
            for block in given.blocks:
                ids = torch.randint(VOCABULARY, (block,))

                def one(forward: Forward, ids: torch.Tensor = ids, context: int = context) -> None:
                    forward.append(ids, context, len(ids))
                    forward.keep(context + len(ids), context, [])

                timed = {name: partial(one, forward) for name, forward in named.items()}
                found = summary(in_turn(timed, given.rounds, "process", warm_ups=1), "transformers")
                yield {"dtype": dtype, "context": context, "block": block} | found


def measure(given: Namespace) -> Iterator[dict[str, Any]]:
    rows = []
    for row in passes(given):
        print(row, flush=True)
        rows.append(row)
        yield {"results": {"passes": rows}}


if __name__ == "__main__":
    benchmark(
        __doc__, "caches", measure, dtypes=["float32", "bfloat16"], contexts=[128, 1024, 8192], blocks=[1, 4, 7, 8],
        rounds=11, layers=28, threads=1,
    )  # fmt: skip
