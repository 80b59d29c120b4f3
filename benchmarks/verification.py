"""Time verification from logits against a log-sum-exp of the same rows, which a step has anyway. Cases, a file each:

- `ordinary`: 10 proposals drawn from a noisy copy of the target, nothing truncated;
- `protected`: the same with tokens protected, truncated too, beside the way through whole rows.
"""

from __future__ import annotations

import statistics
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from pairing import RESULTS, asked, parse, write
from torch import Tensor

from cactus_decoding.core.policy.phases import Phases
from cactus_decoding.core.policy.protection import Protection
from cactus_decoding.core.policy.relaxation import FittedPolicy
from cactus_decoding.core.policy.vocabulary import Vocabulary
from cactus_decoding.core.rules import parse_rule
from cactus_decoding.core.sampling.params import SamplingParams
from cactus_decoding.core.types import Proposal
from cactus_decoding.core.verification.walk import Verifier

TRUNCATED = SamplingParams(temperature=0.6, top_p=0.95, top_k=20)
ORDINARY = SamplingParams()
RULE = "cactus:delta=1"
ORDINARY_RULES = ("lossless", RULE, "clamped:width=1", "clamped:width=3")
VOCABULARY, PROPOSALS = 151_936, 10
PROTECTED_TOKENS = 32
"""About what digits are to a tokenizer that splits numbers."""
NOISE, PROBLEMS = 0.5, 8
"""Standard deviation of what the draft adds to the target's logits, of which lossless sampling accepts four in five;
and how many sets of rows a round goes through, so that accepted and rejected proposals have their usual proportion."""
SHAPE = {"vocabulary": VOCABULARY, "proposals": PROPOSALS}
CLOCKS = {"wall": time.perf_counter, "processor": time.thread_time}
"""What passes while one waits, and what this thread was given of the processor."""
Times = dict[str, dict[str, float]]
Problem = tuple[Tensor, Proposal]
"""The target's logits, ``[proposals + 1, vocabulary]``, and what a draft proposes."""


def numbers(seed: int) -> torch.Generator:
    """Return a generator of the same numbers for the same seed."""
    return torch.Generator().manual_seed(seed)


def drawn_from(probs: Tensor, generator: torch.Generator) -> Proposal:
    """Return a chain of tokens drawn from rows."""
    return Proposal(torch.multinomial(probs, 1, generator=generator)[:, 0].tolist(), probs)


def noisy_copy(seed: int) -> Problem:
    """Return logits, and what is drawn from a draft whose logits are those and noise."""
    generator = numbers(seed)
    logits = torch.randn(PROPOSALS + 1, VOCABULARY, generator=generator) * 3
    noise = torch.randn(PROPOSALS, VOCABULARY, generator=generator) * NOISE
    return logits, drawn_from((logits[:-1] + noise).softmax(-1), generator)


def verifier_of(
    rule: str, sampling: SamplingParams, fitted: FittedPolicy | None = None, *, lazy: bool = True
) -> Verifier:
    """Return what decides on steps: from logits, or from whole rows."""
    plain = lambda logits, _: logits.softmax(-1)  # noqa: E731
    known = sampling if lazy else None
    return Verifier(parse_rule(rule), lambda logits, _: sampling(logits), plain, known, fitted=fitted)


def accepted(verifier: Verifier, problem: Problem, generator: torch.Generator) -> int:
    """Return how many proposals of a step are kept."""
    logits, proposal = problem
    return verifier(verifier.begin(), logits, proposal.token_ids, proposal, generator)[1].num_accepted


def in_turn(
    functions: Mapping[str, Callable[[], Sequence[int] | None]], rounds: int, clock: str, warm_ups: int = 2
) -> Times:
    """Return each function's median milliseconds a problem, and the median over rounds of its time over the first's.

    Turns are taken within each round, so that a busy machine slows all functions alike; the first rounds warm up. How
    many proposals are accepted on average stands beside the times, where a function returns their number by problem.
    """
    now, accepted = CLOCKS[clock], {name: list[int]() for name in functions}
    times: dict[str, list[float]] = {name: [] for name in functions}
    for round_ in range(rounds + warm_ups):
        for name, function in functions.items():
            start = now()
            accepted[name].extend(function() or ())
            if round_ >= warm_ups:
                times[name].append(now() - start)
    first = next(iter(times.values()))
    found: Times = {}
    for name, taken in times.items():
        ratio = statistics.median(own / its for own, its in zip(taken, first, strict=True))
        found[name] = {"ms": round(statistics.median(taken) * 1e3 / PROBLEMS, 4), "ratio": round(ratio, 3)}
        if accepted[name]:
            found[name]["accepted"] = round(statistics.mean(accepted[name]), 2)
    return found


def told(shape: Mapping[str, Any], times: Times) -> dict[str, Any]:
    """Print what `in_turn` found, and return it with what was measured."""
    print(shape)
    for name, taken in times.items():
        accepted = f"   {taken['accepted']:.2f} accepted" if "accepted" in taken else ""
        print(f"  {name:36} {taken['ms']:9.3f} ms   {taken['ratio']:8.3f} x {next(iter(times))}{accepted}", flush=True)
    return {**shape, "times": times}


def ordinary(rounds: int, clock: str) -> Iterator[dict[str, Any]]:
    """Yield the times of rules on all problems, relative to a log-sum-exp of these."""
    problems = [noisy_copy(seed) for seed in range(PROBLEMS)]

    def read() -> None:
        for logits, _ in problems:
            logits.logsumexp(-1)

    def verify_all(rule: str) -> list[int]:
        verifier, generator = verifier_of(rule, ORDINARY), numbers(0)
        return [accepted(verifier, problem, generator) for problem in problems]

    functions: dict[str, Callable[[], list[int] | None]] = {"logsumexp": read}
    functions |= {rule: partial(verify_all, rule) for rule in ORDINARY_RULES}
    yield told(SHAPE | {"sampling": str(ORDINARY), "draft's noise": NOISE}, in_turn(functions, rounds, clock))


def protected(rounds: int, clock: str) -> Iterator[dict[str, Any]]:
    """Yield what protection adds to a step."""
    for sampling in (ORDINARY, TRUNCATED):
        for rule in (RULE, "clamped:width=3"):
            times = protected_steps(rule, sampling, rounds, clock)
            yield told({"what": "step", "rule": rule, "sampling": str(sampling)} | SHAPE, times)


def protected_steps(rule: str, sampling: SamplingParams, rounds: int, clock: str) -> Times:
    """Return the times of a step without protection, with it, and with it from whole rows, over all problems.

    Protected tokens are unlikely in all rows, so that the three decide the same and only the looking differs.
    """
    mask, problems = torch.zeros(VOCABULARY, dtype=torch.bool), list[Problem]()
    mask[torch.arange(PROTECTED_TOKENS) * (VOCABULARY // PROTECTED_TOKENS)] = True
    policy = FittedPolicy(Vocabulary(("",) * VOCABULARY), Phases(), Protection("digits"), mask)
    for seed in range(PROBLEMS):
        logits, proposal = noisy_copy(seed)
        probs = sampling(proposal.probs.log() - 15 * mask)
        problems.append((logits - 15 * mask, drawn_from(probs, numbers(seed))))
    verifiers = {
        "unprotected": verifier_of(rule, sampling),
        "protected": verifier_of(rule, sampling, policy),
        "protected, from whole rows": verifier_of(rule, sampling, policy, lazy=False),
    }

    def verify_all(verifier: Verifier) -> list[int]:
        return [accepted(verifier, problem, numbers(seed)) for seed, problem in enumerate(problems)]

    functions = {name: partial(verify_all, verifier) for name, verifier in verifiers.items()}
    assert functions["unprotected"]() == functions["protected"]() == functions["protected, from whole rows"]()
    return in_turn(functions, rounds, clock)


CASES = {"ordinary": ordinary, "protected": protected}


def main(given: Namespace) -> None:
    torch.set_num_threads(given.threads)
    for case in given.cases:
        results = [*CASES[case](given.rounds, given.clock)]
        write(given.folder / f"verification_{case}.json", {"results": results}, asked(given))


if __name__ == "__main__":
    clock = ("wall", "processor time only with one thread", {"choices": [*CLOCKS]})
    main(parse(__doc__, rounds=60, threads=2, clock=clock, cases=([*CASES], {"choices": CASES}), folder=RESULTS))
