"""Time verification from logits against a log-sum-exp of the same rows and against whole-tensor formulas.

First the ordinary case: proposals drawn from a noisy copy of the target, nothing truncated. Then the same with tokens
protected. Then the extremes: every proposal accepted, and the first one rejected.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import torch
from official_formulas import truncate, verify_in_full
from pairing import add_arguments, paired, paired_per_problem, write
from torch import Tensor

from cactus_decoding.core.policy.phases import Phases
from cactus_decoding.core.policy.position import Position
from cactus_decoding.core.policy.protection import Protection, may_relax
from cactus_decoding.core.policy.relaxation import FittedPolicy
from cactus_decoding.core.policy.vocabulary import Vocabulary
from cactus_decoding.core.rules import parse_rule
from cactus_decoding.core.sampling.params import SamplingParams
from cactus_decoding.core.sampling.rows import LazyRows
from cactus_decoding.core.types import Proposal, StepRows
from cactus_decoding.core.verification.walk import Verifier

TRUNCATED = SamplingParams(temperature=0.6, top_p=0.95, top_k=20)
PLAIN = SamplingParams(temperature=0.6)
ORDINARY = SamplingParams()
RULE = "cactus:delta=1"
PROTECTED_TOKENS = (32, 1_110)
"""About what digits are to a tokenizer that splits numbers, and to one that has tokens of up to three digits."""
ORDINARY_RULES = ("lossless", RULE, "clamped:width=1", "clamped:width=3")
NOISE, PROBLEMS = 0.5, 8
"""Standard deviation of what the draft adds to the target's logits, of which lossless sampling accepts four in five;
and how many sets of rows a round goes through, so that accepted and rejected proposals have their usual proportion."""


def rows(vocabulary: int, proposals: int, batch: int, sampling: SamplingParams) -> tuple[Tensor, Tensor, Tensor]:
    """Return logits and a draft that agrees with them, so that every proposal is accepted."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(batch, proposals + 1, vocabulary, generator=generator) * 3
    draft = sampling(logits[:, :-1])
    drafted = torch.multinomial(draft.flatten(0, 1), 1, generator=generator).reshape(batch, proposals)
    return logits, draft, drafted


def rejected_at_once(logits: Tensor, draft: Tensor, drafted: Tensor) -> tuple[Tensor, Tensor]:
    """Return a draft that is sure of a token that the target excludes, in first place."""
    draft, drafted = draft.clone(), drafted.clone()
    drafted[:, 0] = logits[:, 0].argmin(-1)
    draft[:, 0] = torch.nn.functional.one_hot(drafted[:, 0], logits.shape[-1])
    return draft, drafted


def accepted(verifier: Verifier, logits: Tensor, draft: Tensor, drafted: Tensor, generator: torch.Generator) -> int:
    """Return how many proposals of a step are kept."""
    proposal = Proposal(drafted.tolist(), draft)
    return verifier(verifier.begin(), logits, proposal.token_ids, proposal, generator)[1].num_accepted


def verifier_of(
    rule: str, sampling: SamplingParams, fitted: FittedPolicy | None = None, *, lazy: bool = True
) -> Verifier:
    """Return what decides on steps: from logits, or from whole rows."""
    plain = lambda logits, _: logits.softmax(-1)  # noqa: E731
    known = sampling if lazy else None
    return Verifier(parse_rule(rule), lambda logits, _: sampling(logits), plain, known, fitted=fitted)


def steps(
    rule: str, logits: Tensor, draft: Tensor, drafted: Tensor, sampling: SamplingParams, generator: torch.Generator
) -> list[int]:
    """Return how many proposals each of some sequences keeps."""
    verifier = verifier_of(rule, sampling)
    return [accepted(verifier, *each, generator) for each in zip(logits, draft, drafted, strict=True)]


def measure(
    vocabulary: int, proposals: int, batch: int, sampling: SamplingParams, rounds: int, clock: str, baseline: bool
) -> dict[str, dict[str, float]]:
    """Return the times of one shape; the first is the limit that ratios are taken to."""
    logits, draft, drafted = rows(vocabulary, proposals, batch, sampling)
    wrong_draft, wrong = rejected_at_once(logits, draft, drafted)
    generator = torch.Generator().manual_seed(0)
    verify_all = partial(steps, sampling=sampling, generator=generator)
    functions = {
        "logsumexp": lambda: logits.logsumexp(-1),
        "lossless, all accepted": lambda: verify_all("lossless", logits, draft, drafted),
        "cactus, all accepted": lambda: verify_all(RULE, logits, draft, drafted),
        "lossless, first rejected": lambda: verify_all("lossless", logits, wrong_draft, wrong),
        "cactus, first rejected": lambda: verify_all(RULE, logits, wrong_draft, wrong),
    }
    assert functions["cactus, all accepted"]() == [proposals] * batch
    assert functions["cactus, first rejected"]() == [0] * batch
    if baseline:
        functions["formulas without truncation"] = lambda: [
            verify_in_full(*sequence, 1.0, 0.6) for sequence in zip(logits, draft, drafted, strict=True)
        ]
        functions["formulas, truncated by a sort"] = lambda: [
            verify_in_full(truncate(one, 20, 0.95), p, ids, 1.0, 0.6)
            for one, p, ids in zip(logits, draft, drafted, strict=True)
        ]
    return paired(functions, rounds, clock)


def noisy_copy(seed: int, vocabulary: int, proposals: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return logits, a draft whose logits are those and noise, and tokens drawn from it."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(1, proposals + 1, vocabulary, generator=generator) * 3
    noise = torch.randn(1, proposals, vocabulary, generator=generator) * NOISE
    draft = (logits[:, :-1] + noise).softmax(-1)
    return logits, draft, torch.multinomial(draft[0], 1, generator=generator).T


def measure_ordinary(vocabulary: int, proposals: int, rounds: int, clock: str) -> dict[str, dict[str, float]]:
    """Return the times of the ordinary case, over all problems together, and how many proposals are accepted."""
    problems = [noisy_copy(seed, vocabulary, proposals) for seed in range(PROBLEMS)]
    generator = numbers(0)

    def verify_all(rule: str) -> list[int]:
        return [steps(rule, *problem, ORDINARY, generator)[0] for problem in problems]

    return against_reading([logits for logits, _, _ in problems], verify_all, ORDINARY_RULES, rounds, clock)


def against_reading(
    logits: Sequence[Tensor], verify_all: Callable[[str], list[int]], rules: Sequence[str], rounds: int, clock: str
) -> dict[str, dict[str, float]]:
    """Return the times of rules on all problems, relative to a log-sum-exp of these, and how many are accepted."""

    def read() -> None:
        for rows_ in logits:
            rows_.logsumexp(-1)

    functions: dict[str, Callable[[], list[int] | None]] = {"logsumexp": read}
    functions |= {rule: partial(verify_all, rule) for rule in rules}
    return paired_per_problem(functions, len(logits), rounds, clock)


def ordinary(rounds: int, clock: str) -> dict[str, object]:
    """Measure the ordinary case, print it and return it."""
    times = measure_ordinary(151_936, 10, rounds, clock)
    shape = {"vocabulary": 151_936, "proposals": 10, "batch": 1, "sampling": str(ORDINARY), "draft's noise": NOISE}
    show(shape, times)
    return {**shape, "times": times}


def policy_of(vocabulary: int, tokens: int) -> FittedPolicy:
    """Return a policy that protects this many tokens, spread over a vocabulary, at the usual threshold."""
    mask = torch.zeros(vocabulary, dtype=torch.bool)
    mask[torch.arange(tokens) * (vocabulary // tokens)] = True
    return FittedPolicy(Vocabulary(("",) * vocabulary), Phases(), Protection("digits"), mask)


def measure_mass(vocabulary: int, tokens: int, rounds: int, clock: str) -> dict[str, dict[str, float]]:
    """Return the time of the masked sum of ten rows beside that of reading them: of rows, and of what is made of them.

    Logits are the usual start, of which verification has made probabilities already.
    """
    logits = noisy_copy(0, vocabulary, 10)[0][0, :10]
    probs, policy = logits.softmax(-1), policy_of(vocabulary, tokens)
    token_ids, mask = policy.token_ids, policy.mask
    assert token_ids is not None
    assert mask is not None
    whole = StepRows(torch.cat([logits, logits[-1:]]), [0] * 10, Proposal([0] * 10, None), *[lambda rows, _: rows] * 2)
    known = [Position(whole, node - 1, LazyRows(logits, ORDINARY)) for node in range(10)]
    assert all(len(position.row.probs) == vocabulary for position in known)
    assert policy.protection is not None
    threshold = policy.protection.threshold
    return paired(
        {
            "logsumexp": lambda: logits.logsumexp(-1),
            "masked sum, rows known": lambda: [may_relax(position.mass(token_ids), threshold) for position in known],
            "masked sum of probabilities": lambda: probs.index_select(-1, token_ids).double().sum(-1),
            "product with a whole mask": lambda: probs @ mask.float(),
        },
        rounds,
        clock,
    )


def measure_protected(
    vocabulary: int, tokens: int, rule: str, sampling: SamplingParams, rounds: int, clock: str
) -> dict[str, dict[str, float]]:
    """Return the times of a step without protection, with it, and with it from whole rows, over all problems.

    Protected tokens are unlikely in all rows, so that the three decide the same and only the looking differs.
    """
    policy = policy_of(vocabulary, tokens)
    assert policy.mask is not None
    problems = []
    for seed in range(PROBLEMS):
        logits, draft, drafted = noisy_copy(seed, vocabulary, 10)
        logits, draft = logits - 15 * policy.mask, sampling((draft.log() - 15 * policy.mask)[0])
        drafted = torch.multinomial(draft, 1, generator=numbers(seed)).squeeze(1)
        problems.append((logits[0], draft, drafted, numbers(seed)))
    verifiers = {
        "unprotected": verifier_of(rule, sampling),
        "protected": verifier_of(rule, sampling, policy),
        "protected, from whole rows": verifier_of(rule, sampling, policy, lazy=False),
    }

    def verify_all(verifier: Verifier) -> list[int]:
        return [accepted(verifier, *problem) for problem in again(problems)]

    functions = {name: partial(verify_all, verifier) for name, verifier in verifiers.items()}
    assert functions["unprotected"]() == functions["protected"]() == functions["protected, from whole rows"]()
    return paired_per_problem(functions, PROBLEMS, rounds, clock)


Case = tuple[Tensor, Tensor, Tensor, torch.Generator]


def again(problems: Sequence[Case]) -> Iterator[Case]:
    """Yield problems with their generators set back."""
    for seed, (*tensors, generator) in enumerate(problems):
        yield *tensors, generator.manual_seed(seed)


def numbers(seed: int) -> torch.Generator:
    """Return a generator of the same numbers for the same seed."""
    return torch.Generator().manual_seed(seed)


def protected(rounds: int, clock: str) -> list[dict[str, object]]:
    """Measure what protection adds, print it and return it."""
    results: list[dict[str, object]] = []
    for tokens in PROTECTED_TOKENS:
        shape: dict[str, object] = {"what": "masked sum", "vocabulary": 151_936, "rows": 10, "protected tokens": tokens}
        times = measure_mass(151_936, tokens, rounds, clock)
        show(shape, times)
        results.append({**shape, "times": times})
    for sampling in (ORDINARY, TRUNCATED):
        for rule in (RULE, "clamped:width=3"):
            shape = {"what": "step", "vocabulary": 151_936, "proposals": 10, "protected tokens": PROTECTED_TOKENS[0]}
            shape |= {"rule": rule, "sampling": str(sampling)}
            times = measure_protected(151_936, PROTECTED_TOKENS[0], rule, sampling, rounds, clock)
            show(shape, times)
            results.append({**shape, "times": times})
    return results


def show(shape: Mapping[str, object], times: Mapping[str, Mapping[str, float]]) -> None:
    """Print a table."""
    print(shape)
    for name, time in times.items():
        accepted = f"   {time['accepted']:.2f} accepted" if "accepted" in time else ""
        print(f"  {name:32} {time['ms']:9.3f} ms   {time['ratio']:8.3f} x {next(iter(times))}{accepted}")


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser, rounds=60)
    parser.add_argument("--scaling", action="store_true", help="vocabulary, proposals and batch instead of the bars")
    parser.add_argument("--protected", action="store_true", help="protected tokens and nothing else")
    parser.add_argument("--output", default=None, help="name of the result file, without its ending")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if not arguments.scaling:
        write("verification_protected", vars(arguments), protected(arguments.rounds, arguments.clock))
    if arguments.protected:
        return
    if arguments.scaling:
        shapes = [(v, 10, 1) for v in (4_000, 16_000, 32_000, 64_000, 128_000, 256_000)]
        shapes += [(151_936, k, 1) for k in (1, 2, 4, 8, 16, 32)] + [(32_000, 4, b) for b in (1, 4, 16, 64)]
        cases = [(shape, TRUNCATED, False) for shape in shapes]
    else:
        cases = [((151_936, 10, 1), TRUNCATED, True), ((151_936, 10, 1), PLAIN, False)]
        write("verification_ordinary", vars(arguments), [ordinary(arguments.rounds, arguments.clock)])
    results = []
    for (vocabulary, proposals, batch), sampling, baseline in cases:
        times = measure(vocabulary, proposals, batch, sampling, arguments.rounds, arguments.clock, baseline)
        shape = {"vocabulary": vocabulary, "proposals": proposals, "batch": batch, "sampling": str(sampling)}
        results.append({**shape, "times": times})
        show(shape, times)
    write(
        arguments.output or ("verification_scaling" if arguments.scaling else "verification"), vars(arguments), results
    )


if __name__ == "__main__":
    main()
