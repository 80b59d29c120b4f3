"""Time passes over the same tokens with several caches, in turn in one process.

Ways: ``transformers``, its `DynamicCache` and its attention; ``rows``, the same with rows in place; and
``rows, keys unrepeated``, what the package does. The model has the shape of Qwen3-0.6B and random weights, the context
random keys and values. Times are of the process, on one thread; ratios are medians over rounds of every way.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from pairing import write
from transformers import DynamicCache, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from cactus_decoding.core.models.base import Forward
from cactus_decoding.engines.transformers.compatibility import remove_last
from cactus_decoding.engines.transformers.forward import GeneralForward

QWEN3 = {
    "vocab_size": 151936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": True,
}


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


def in_turn(timed: dict[str, Callable[[], None]], rounds: int) -> dict[str, list[float]]:
    """Return seconds of the process by way, one a round."""
    seconds: dict[str, list[float]] = {name: [] for name in timed}
    for name in [*timed] * rounds:
        before = time.process_time()
        timed[name]()
        seconds[name].append(time.process_time() - before)
    return seconds


def summary(seconds: dict[str, list[float]], base: str) -> dict[str, Any]:
    """Return the median milliseconds of each way, and how fast it is beside another: 2 is twice as fast."""
    shares = {name: [b / own for b, own in zip(seconds[base], each, strict=True)] for name, each in seconds.items()}
    return {
        "ms": {name: round(1e3 * statistics.median(each), 2) for name, each in seconds.items()},
        f"speed beside {base}": {name: round(statistics.median(each), 3) for name, each in shares.items()},
    }


@torch.inference_mode()
def passes(
    dtype: str, contexts: list[int], blocks: list[int], rounds: int, shape: dict[str, Any]
) -> list[dict[str, Any]]:
    """Time passes of a model of a shape."""
    torch.manual_seed(0)
    torch.set_default_dtype(getattr(torch, dtype))
    model = Qwen3ForCausalLM(Qwen3Config(**shape)).eval()
    named, found = ways(model), []
    for context in contexts:
        keys = torch.randn(1, shape["num_key_value_heads"], context, shape["head_dim"])
        for forward in named.values():
            fill(forward, keys)
        for block in blocks:
            ids = torch.randint(shape["vocab_size"], (block,))

            def one(forward: Forward, ids: torch.Tensor = ids, context: int = context) -> None:
                forward.append(ids, context, len(ids))
                forward.keep(context + len(ids), context, [])

            timed = {name: (lambda forward=forward: one(forward)) for name, forward in named.items()}
            in_turn(timed, 1)
            row = {"dtype": dtype, "context": context, "block": block} | summary(in_turn(timed, rounds), "transformers")
            print(row, flush=True)
            found.append(row)
    return found


def main() -> None:
    """Run, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--contexts", nargs="+", type=int, default=[128, 1024, 8192])
    parser.add_argument("--blocks", nargs="+", type=int, default=[1, 4, 7, 8])
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--layers", type=int, default=QWEN3["num_hidden_layers"])
    parser.add_argument("--output", default="caches", help="a name in results/")
    given = parser.parse_args()
    torch.set_num_threads(1)
    shape = QWEN3 | {"num_hidden_layers": given.layers}
    found = [row for dtype in given.dtypes for row in passes(dtype, given.contexts, given.blocks, given.rounds, shape)]
    write(given.output, vars(given), {"passes": found})


if __name__ == "__main__":
    main()
