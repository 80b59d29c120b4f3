"""vLLM with a fixed number of requests under way: how long an output token of theirs takes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import count, cycle, product
from typing import Any

import numpy as np

from cactus_decoding.contrib.load_rules.table import LoadRule
from cactus_decoding.evaluation.engines.vllm import located
from cactus_decoding.evaluation.intervals import Numbers
from cactus_decoding.integrations.common.keys import RULE_KEY
from cactus_decoding.integrations.vllm import offline
from cactus_decoding.integrations.vllm.request import LOAD_KEY, RULES_KEY, ServerConfig, request_of
from cactus_decoding.policy.fitted import check_scalable
from cactus_decoding.rules.base import Rule

SizeAndShare = tuple[int, float]
"""How many requests are under way, and the share of a rule's knob that they have."""


class VllmUnderLoad:
    """A running engine of vLLM that answers many requests at once; end it with `close`.

    At most ``size`` requests are answered at once; a ``rule`` from outside the package, which they will ask for, is
    imported where the engine starts.
    """

    def __init__(
        self,
        target: str,
        draft: str,
        num_speculative_tokens: int,
        size: int,
        engine_arguments: str | None = None,
        draft_sampling: str = "greedy",
        rule: str = "lossless",
    ) -> None:
        target, draft, given = located(target, draft, engine_arguments)
        config = offline.engine_config(
            target, draft, num_speculative_tokens, given, max_num_seqs=size, draft_sampling=draft_sampling
        )
        config.additional_config = {**config.additional_config, RULES_KEY: [rule]}
        ServerConfig.of(config)  # raises before the engine starts
        self._engine = offline.start_engine(config, offline.StepCounts())
        self._names = map(str, count())

    def close(self) -> None:
        """End vLLM's processes."""
        self._engine.engine_core.shutdown(timeout=30.0)

    def seconds_per_token(self, prompts: Sequence[str], asked: Mapping[str, Any], size: int, max_tokens: int) -> float:
        """Return the median over answers of their wall time over their tokens, while ``size`` of them are under way.

        For every answer that ends another one begins, until twice as many have ended; the rest is aborted.

        Prompts are taken in turn, and an answer has ``max_tokens`` whether it ends before or not; ``asked`` are keys of
        each request, such as ``acceptance_rule``.
        """
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        begun, seconds, texts = dict[str, float](), list[float](), cycle(prompts)

        def begin() -> None:
            sampling = SamplingParams(
                temperature=1.0,
                max_tokens=max_tokens,
                ignore_eos=True,
                extra_args=dict(asked) or None,
                output_kind=RequestOutputKind.FINAL_ONLY,
            )
            name = next(self._names)
            begun[name] = time.perf_counter()
            self._engine.add_request(name, next(texts), sampling)

        for _ in range(size):
            begin()
        while len(seconds) < 2 * size:
            for output in self._engine.step():
                seconds.append((time.perf_counter() - begun.pop(output.request_id)) / max_tokens)
                begin()
        self._engine.abort_request(list(begun))
        while self._engine.has_unfinished_requests():
            self._engine.step()
        return statistics.median(seconds)


def time_load(
    engine: VllmUnderLoad,
    rule: Rule,
    prompts: Sequence[str],
    sizes: Sequence[int],
    shares: Sequence[float],
    *,
    rounds: int,
    max_tokens: int,
    report: Callable[[int], None] = lambda done: None,
) -> dict[SizeAndShare, Numbers]:
    """Return seconds per output token, ``[rounds]``, for each number of requests and each share of a rule's knob.

    In a round everything is timed once, and each begins with another one, so that what slows the machine down for a
    while strikes all of them.

    ``rule`` is the request's own, of whose knob the shares are, 0 for lossless; ``report`` is called with how many are
    timed.
    """
    check_scalable(rule, LOAD_KEY)
    request_of({RULE_KEY: str(rule)})
    timed = list(product(sizes, shares))
    found: dict[SizeAndShare, list[float]] = {each: [] for each in timed}
    engine.seconds_per_token(prompts, {RULE_KEY: str(rule)}, 1, max_tokens)  # first passes are slow
    for number in range(rounds):
        turn = number % len(timed)
        for place, (size, share) in enumerate([*timed[turn:], *timed[:turn]], start=1):
            scaled = LoadRule(((1, size, share),)).rule(rule, size)
            asked = {} if scaled is None else {RULE_KEY: str(scaled)}
            found[size, share].append(engine.seconds_per_token(prompts, asked, size, max_tokens))
            report(number * len(timed) + place)
    return {each: np.array(values) for each, values in found.items()}
