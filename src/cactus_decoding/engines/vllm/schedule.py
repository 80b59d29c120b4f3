"""How many proposals pay at which batch size: measured on this machine, chosen, written as vLLM reads it.

    python -m cactus_decoding.engines.vllm.schedule OUTPUT [VLLM OPTIONS]

measures in an engine with these options and writes tokens per second to OUTPUT, as JSON. `cactus serve` runs it.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import count, pairwise
from pathlib import Path
from typing import Any
from uuid import uuid4

from cactus_decoding.core.checks import check_integer
from cactus_decoding.engines.vllm.extra_args import PROPOSALS_KEY

SIZES = (1, 2, 4, 8)  # requests at once
CANDIDATES = (0, 1, 2, 3, 5)  # proposals per step
MARGIN = 0.03
"""What proposals must gain, in parts of the speed without any: less could be the clock's mistake."""
TOKENS, ROUNDS = 24, 6  # of each request while a number is measured, and how often it is at most
QUESTIONS = (
    "Why is the sky blue during the day and red in the evening?",
    "A pen costs 3 euros. Tom buys 4 and pays with 20 euros. Compute step by step what he gets back.",
    "Write a function in Python that returns the second largest number of a list.",
    "Translate into French: The train to the coast leaves at half past nine.",
    "Summarize in two sentences how a bill becomes a law.",
    "Name five things that should be in a first-aid kit, and say what each is for.",
    "Write a short letter to a neighbour who has lent you a ladder.",
    "Explain to a child why the sea is salty.",
)
Rates = Mapping[int, Mapping[int, float]]  # tokens per second, by requests at once and proposals per step
Schedule = tuple[tuple[int, int], ...]  # from which number of requests on, and how many proposals


def choose(rates: Rates, margin: float = MARGIN) -> Schedule:
    """Return how many proposals pay: the fastest number at each size that beats none by the margin, else none.

    Between two measured sizes the smaller of their numbers holds, and above the greatest one its own.

    Example:
        >>> choose({1: {0: 5.0, 2: 6.0, 4: 6.6}, 2: {0: 9.0, 2: 9.2, 4: 8.0}, 8: {0: 17.0, 2: 12.0}})
        ((1, 4), (2, 0))
        >>> choose({1: {0: 5.0, 4: 6.0}, 4: {0: 9.0, 2: 10.0, 4: 9.9}})
        ((1, 4), (2, 2))
    """
    best = {}
    for size, speeds in sorted(rates.items()):
        fastest = max(speeds, key=speeds.__getitem__)
        best[size] = fastest if gains(speeds, fastest, margin) else 0
    sizes = [*best]
    steps = {size: best[size] for size in sizes}
    steps |= {low + 1: min(best[low], best[high]) for low, high in pairwise(sizes) if low + 1 < high}
    ordered = sorted(steps.items())
    return (ordered[0], *(later for earlier, later in pairwise(ordered) if earlier[1] != later[1]))


def parse_schedule(text: str) -> Schedule:
    """Read ``FROM:NUMBER`` pairs: from so many requests at once on, that many proposals per step.

    Raises:
        ValueError: for other texts, and where the first pair is not from 1 on.

    Example:
        >>> parse_schedule("1:4,3:2,5:0")
        ((1, 4), (3, 2), (5, 0))
    """
    pairs = [part.split(":") for part in text.split(",")]
    if not all(len(pair) == 2 and all(each.strip().isdecimal() for each in pair) for pair in pairs):
        raise ValueError(f"numbers by batch size must be FROM:NUMBER pairs such as 1:4,3:2,5:0, but are {text!r}")
    steps = tuple((int(begin), check_integer("num_speculative_tokens", int(number), 0)) for begin, number in pairs)
    if steps[0][0] != 1 or any(later <= earlier for (earlier, _), (later, _) in pairwise(steps)):
        raise ValueError(f"numbers by batch size must begin with 1 and rise, such as 1:4,3:2,5:0, but are {text!r}")
    return steps


def spelled(schedule: Schedule) -> str:
    return ",".join(f"{begin}:{number}" for begin, number in schedule)


def vllm_schedule(schedule: Schedule) -> dict[str, Any]:
    """Return the keys of ``--speculative-config`` for a schedule.

    Example:
        >>> vllm_schedule(((1, 4), (3, 0)))
        {'num_speculative_tokens': 4, 'num_speculative_tokens_per_batch_size': [[1, 2, 4], [3, 3, 0]]}
    """
    ends = [begin - 1 for begin, _ in schedule[1:]] + [schedule[-1][0]]  # vLLM carries the last number forward
    ranges = [[begin, end, number] for (begin, number), end in zip(schedule, ends, strict=True)]
    return {
        "num_speculative_tokens": max(1, *(number for _, number in schedule)),
        "num_speculative_tokens_per_batch_size": ranges,
    }


def tokens_per_second(
    engine: Any, prompts: Sequence[str], size: int, tokens: int, sampling: Mapping[str, Any], number: int | None = None
) -> float:
    """Answer prompts, always ``size`` at once, until each of these has made so many tokens on average.

    As soon as an answer of that length is done, the next one begins. ``number`` is how many proposals are verified.
    """
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    asked = None if number is None else {PROPOSALS_KEY: number}
    params = SamplingParams(
        **sampling, max_tokens=tokens, ignore_eos=True, output_kind=RequestOutputKind.DELTA, extra_args=asked
    )
    places = count()

    def add() -> str:
        name = uuid4().hex
        engine.add_request(name, prompts[next(places) % len(prompts)], params)
        return name

    engine.reset_prefix_cache()
    begin, made, running = time.perf_counter(), 0, {add() for _ in range(size)}
    while made < size * tokens:
        for output in engine.step():
            made += len(output.outputs[0].token_ids)
            if output.finished:
                running.remove(output.request_id)
                running.add(add())
    seconds = time.perf_counter() - begin
    give_up(engine, running)
    return made / seconds


def give_up(engine: Any, requests: Iterable[str]) -> None:
    """Abort requests by their names, and let the engine finish what it had begun."""
    engine.abort_request([*requests])
    while engine.has_unfinished_requests():
        engine.step()


def measure(engine: Any, prompts: Sequence[str], sampling: Mapping[str, Any], numbers: Sequence[int]) -> Rates:
    """Return tokens per second of an engine whose requests all want as many proposals verified.

    Numbers take turns. One that gained too little beside none in a round is left out of later ones.
    """
    for number in numbers:
        tokens_per_second(engine, prompts, SIZES[-1], 4, sampling, number)  # warm-up
    rounds: dict[int, list[dict[int, float]]] = {size: [] for size in SIZES}
    left = {size: [*numbers] for size in SIZES}
    for turn in range(ROUNDS):
        for size in SIZES:
            if turn and left[size] == [0]:
                continue
            order = left[size] if turn % 2 == 0 else [*reversed(left[size])]
            found = {number: tokens_per_second(engine, prompts, size, TOKENS, sampling, number) for number in order}
            rounds[size].append({number: found[number] for number in left[size]})
            left[size] = [number for number in left[size] if number == 0 or gains(found, number)]
    return {size: cautious(each) for size, each in rounds.items()}


def gains(speeds: Mapping[int, float], number: int, margin: float = MARGIN) -> bool:
    return speeds[number] > (1 + margin) * speeds[0]


def cautious(rounds: Sequence[Mapping[int, float]]) -> dict[int, float]:
    """Return the median speed without proposals, and with each number of them by the round in which that gained least.

    A machine that others use is faster in one minute and slower in the next, and what gained once may gain nothing.

    Example:
        >>> cautious([{0: 10.0, 2: 9.0, 3: 15.0}, {0: 5.0, 3: 5.5}, {0: 8.0, 3: 12.0}])
        {0: 8.0, 2: 7.2, 3: 8.8}
    """
    none = statistics.median(each[0] for each in rounds)
    least = {number: min(each[number] / each[0] for each in rounds if number in each) for number in rounds[0]}
    return {number: round(none * ratio, 4) for number, ratio in least.items()}


def start(options: Sequence[str]) -> tuple[Any, list[str], dict[str, Any]]:
    """Return an engine with a server's options, questions as its model wants them, and its sampling defaults."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser
    from vllm.v1.engine.llm_engine import LLMEngine

    from cactus_decoding.core.models.tokenizers import as_chat_prompt

    given, _ = EngineArgs.add_cli_args(FlexibleArgumentParser()).parse_known_args([*options])  # others are the server's
    engine = LLMEngine.from_engine_args(EngineArgs.from_cli_args(given))
    tokenizer = engine.get_tokenizer()
    if getattr(tokenizer, "chat_template", None):
        prompts = [as_chat_prompt(tokenizer, question) for question in QUESTIONS]
    else:
        prompts = [f"Question: {question}\nAnswer:" for question in QUESTIONS]
    return engine, prompts, engine.model_config.get_diff_sampling_param()


def main(output: Path, options: Sequence[str]) -> None:
    engine, prompts, sampling = start(options)
    most = engine.vllm_config.speculative_config.num_speculative_tokens
    numbers = [each for each in CANDIDATES if each <= most]
    output.write_text(json.dumps(measure(engine, prompts, sampling, numbers)))


def read_rates(file: Path) -> Rates:
    measured = json.loads(file.read_text())
    return {int(size): {int(number): rate for number, rate in by.items()} for size, by in measured.items()}


def rates_text(rates: Rates) -> str:
    """Return tokens per second as a table for people.

    Example:
        >>> print(rates_text({1: {0: 5.0, 2: 6.5}, 8: {0: 17.0, 2: 12.0}}))
        requests  0 proposals  2 proposals
               1          5.0          6.5
               8         17.0         12.0
    """
    numbers = [*next(iter(rates.values()))]
    lines = ["requests" + "".join(f"{f'{number} proposals':>13}" for number in numbers)]
    lines += [f"{size:>8}" + "".join(f"{by[number]:>13.1f}" for number in numbers) for size, by in rates.items()]
    return "\n".join(lines)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
