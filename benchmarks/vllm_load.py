"""A vLLM server under load: numbers of proposals by batch size beside a fixed number, as ratios to no draft.

    python benchmarks/vllm_load.py --target Qwen/Qwen3-8B --draft Qwen/Qwen3-0.6B --output results.json

It needs an environment with vLLM, and a machine with nothing else to do. First it measures which numbers pay, as
`cactus serve --num-speculative-tokens auto` does, unless --schedule says them. Then an engine without a draft, one with
--fixed proposals and one with the numbers by batch size take turns, --rounds times. Each answers the same questions
with 1 to --clients requests at once, of --tokens tokens each; a finished one is replaced by the next. Engines start
anew in each round, as two at once would disturb each other.
"""

from __future__ import annotations

import multiprocessing
import shlex
import statistics
from argparse import Namespace
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from pairing import benchmark, mistaken

from cactus_decoding.engines.vllm.schedule import (
    CANDIDATES,
    choose,
    parse_schedule,
    rates_text,
    spelled,
    start,
    tokens_per_second,
)
from cactus_decoding.engines.vllm.server import (
    SERVER_MODULE,
    free_memory_share,
    measured_rates,
    memory_arguments,
    precision_arguments,
    server_command,
    speculative_config,
)

NONE = "no draft"


def speeds(options: Sequence[str], clients: int, tokens: int) -> list[float]:
    """Return an engine's tokens per second with 1 to so many requests at once."""
    engine, prompts, sampling = start(options)
    try:
        tokens_per_second(engine, prompts, clients, 4, sampling)  # warm-up
        return [tokens_per_second(engine, prompts, size, tokens, sampling) for size in range(1, clients + 1)]
    finally:
        engine.engine_core.shutdown()  # else this process would wait for it


def measure(given: Namespace) -> Iterator[dict[str, Any]]:
    further = shlex.split(given.vllm)
    memory = memory_arguments(further, free_memory_share())
    precision = precision_arguments(given.target, further)

    def command(number: Any) -> list[str]:
        speculation = speculative_config(given.draft, number, given.draft_sampling)
        return server_command(given.target, speculation, None, 0.0, [*memory, *precision, *further])

    rates = None
    if given.schedule is None:
        rates = measured_rates(command(CANDIDATES[-1]))
        if isinstance(rates, int):
            mistaken("the measurement failed: the log above says why")
        print(rates_text(rates), flush=True)
    schedule = choose(rates) if rates is not None else parse_schedule(given.schedule)
    by_size = f"by batch size ({spelled(schedule)})"
    print(by_size, flush=True)
    plain = command(1)
    place = plain.index("--speculative-config")
    ways = {
        NONE: plain[:place] + plain[place + 2 :],
        f"{given.fixed} proposals": command(given.fixed),
        by_size: command(schedule),
    }
    rounds: list[dict[str, list[float]]] = []
    for number in range(given.rounds):
        order = [*ways] if number % 2 == 0 else [*reversed(ways)]
        found: dict[str, list[float]] = {}
        for way in order:
            options = ways[way][ways[way].index(SERVER_MODULE) + 1 :]
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
                found[way] = pool.submit(speeds, options, given.clients, given.tokens).result()
        rounds.append(found)
        ratios = {
            way: [
                statistics.median(each[way][place] / each[NONE][place] for each in rounds)
                for place in range(given.clients)
            ]
            for way in ways
            if way != NONE
        }
        for way, by in ratios.items():
            which = f"round {number + 1}, {way}, 1 to {given.clients} requests"
            print(f"{which}: " + "  ".join(f"{x:.3f}" for x in by), flush=True)
        yield {"schedule": spelled(schedule), "rates": rates, "rounds": rounds, "median_ratio_to_no_draft": ratios}


if __name__ == "__main__":
    benchmark(
        __doc__,
        "vllm_load",
        measure,
        target=(None, "a model that vLLM reads; the bundled one, if left out"),
        draft=(None, "its draft, or ngram"),
        draft_sampling=("greedy", "how the draft proposes: greedy or probabilistic"),
        fixed=(3, "proposals of the engine with a fixed number"),
        schedule=(None, "numbers by batch size, such as 1:3,5:0; measured, if left out"),
        clients=(8, "requests at once, at most"),
        tokens=(64, "of an answer"),
        rounds=(3, "of all engines"),
        vllm=("", "further options of vLLM, such as --vllm='--dtype bfloat16 --max-model-len 1024'"),
    )
