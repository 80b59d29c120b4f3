"""A vLLM server under load: numbers of proposals by batch size beside a fixed number, as ratios to no draft.

    python benchmarks/vllm_load.py --target Qwen/Qwen3-8B --draft Qwen/Qwen3-0.6B --output results.json

It needs an environment with vLLM, and a machine with nothing else to do. First it measures which numbers pay, as
`cactus serve --num-speculative-tokens auto` does, unless --schedule says them. Then an engine with these numbers stands
beside one without a draft, and after it one with --fixed proposals. They take turns every few seconds, as a machine
that others share is faster in one minute and slower in the next. Each answers the same questions with 1 to
--clients requests at once, --tokens tokens for each request; a finished one is replaced by the next. Both engines must
fit into memory. They run in a process each, without a server's own.
"""

from __future__ import annotations

import multiprocessing
import shlex
import statistics
from argparse import Namespace
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any

from pairing import benchmark, mistaken
from vllm_environment import set_environment

from cactus_decoding.core.checks import check_integer
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
_STARTED: list[Any] = []
"""What `start` returned in this process."""


def begin(options: Sequence[str], clients: int) -> None:
    _STARTED[:] = start(options)
    speed(clients, 4)  # warm-up


def speed(size: int, tokens: int) -> float:
    """Return the tokens per second of this process's engine with so many requests at once."""
    engine, prompts, sampling = _STARTED
    return tokens_per_second(engine, prompts, size, tokens, sampling)


def end() -> None:
    _STARTED[0].engine_core.shutdown()  # else the process would wait for it


@contextmanager
def engine(command: Sequence[str], clients: int) -> Iterator[ProcessPoolExecutor]:
    """Start an engine with a server's options in a process of its own."""
    options = command[command.index(SERVER_MODULE) + 1 :]
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        process.submit(begin, options, clients).result()
        try:
            yield process
        finally:
            process.submit(end).result()


def measure(given: Namespace) -> Iterator[dict[str, Any]]:
    try:
        for name in ("fixed", "clients", "tokens", "rounds", "threads"):
            check_integer(f"--{name}", getattr(given, name), 1)
        asked = None if given.schedule is None else parse_schedule(given.schedule)
    except (ValueError, TypeError) as error:
        mistaken(f"vllm_load.py: {error}")
    set_environment(given.threads)
    further = shlex.split(given.vllm)
    memory = memory_arguments(further, (free_memory_share() or 0.9) / 2)
    precision = precision_arguments(given.target, further)

    def command(number: Any) -> list[str]:
        speculation = speculative_config(given.draft, number, given.draft_sampling)
        return server_command(given.target, speculation, None, 0.0, [*memory, *precision, *further])

    rates = None
    if asked is None:
        rates = measured_rates(command(CANDIDATES[-1]))
        if isinstance(rates, int):
            mistaken("the measurement failed: the log above says why")
        print(rates_text(rates), flush=True)
    schedule = asked if rates is None else choose(rates)
    by_size = f"by batch size ({spelled(schedule)})"
    print(by_size, flush=True)
    plain = command(1)
    place = plain.index("--speculative-config")
    ways = {by_size: command(schedule), f"{given.fixed} proposals": command(given.fixed)}
    sizes = range(1, given.clients + 1)
    rounds: dict[str, list[list[list[float]]]] = {way: [] for way in ways}
    with engine(plain[:place] + plain[place + 2 :], given.clients) as none:
        for way, options in ways.items():
            with engine(options, given.clients) as own:
                for turn in range(given.rounds):
                    order = (none, own) if turn % 2 == 0 else (own, none)  # neither is always first
                    found = [[each.submit(speed, size, given.tokens).result() for each in order] for size in sizes]
                    rounds[way].append([pair if turn % 2 == 0 else pair[::-1] for pair in found])
                    shown = ratios(rounds[way])
                    print(f"{way}, {turn + 1} rounds: " + "  ".join(f"{x:.2f}" for x, _, _ in shown), flush=True)
                    yield {
                        "schedule": spelled(schedule),
                        "rates": rates,
                        "rounds": rounds,
                        "ratios_to_no_draft": {name: ratios(some) for name, some in rounds.items() if some},
                    }


def ratios(rounds: Sequence[Sequence[Sequence[float]]]) -> list[list[float]]:
    """Return the median ratio for each number of requests, with the lowest and the highest of all rounds."""
    by_size = [[own / none for none, own in pairs] for pairs in zip(*rounds, strict=True)]
    return [[statistics.median(each), min(each), max(each)] for each in by_size]


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
        tokens=(24, "for each request, on average"),
        rounds=(8, "of each pair of engines"),
        threads=(2, "without a GPU"),
        vllm=("", "further options of vLLM, such as --vllm='--dtype bfloat16 --max-model-len 1024'"),
    )
