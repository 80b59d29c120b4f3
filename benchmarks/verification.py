"""Time verification from logits against a log-sum-exp of the same rows and against whole-tensor formulas.

First the ordinary case: proposals drawn from a noisy copy of the target, nothing truncated. Then the same with tokens
protected. Then the extremes: every proposal accepted, and the first one rejected. Each has a result file of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from official_formulas import truncate, verify_in_full
from pairing import RESULTS, TIMED, asked, paired, paired_per_problem, parse, show, write
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
VOCABULARY, PROPOSALS = 151_936, 10
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


def extremes(sampling: SamplingParams, rounds: int, clock: str, baseline: bool) -> dict[str, Any]:
    """Return the times where all proposals are accepted, or the first is rejected, perhaps of whole formulas too."""
    logits, draft, drafted = rows(VOCABULARY, PROPOSALS, 1, sampling)
    wrong_draft, wrong = rejected_at_once(logits, draft, drafted)
    verify_all = partial(steps, sampling=sampling, generator=numbers(0))
    functions = {
        "logsumexp": lambda: logits.logsumexp(-1),
        "lossless, all accepted": lambda: verify_all("lossless", logits, draft, drafted),
        "cactus, all accepted": lambda: verify_all(RULE, logits, draft, drafted),
        "lossless, first rejected": lambda: verify_all("lossless", logits, wrong_draft, wrong),
        "cactus, first rejected": lambda: verify_all(RULE, logits, wrong_draft, wrong),
    }
    assert functions["cactus, all accepted"]() == [PROPOSALS]
    assert functions["cactus, first rejected"]() == [0]
    if baseline:
        one = logits[0], draft[0], drafted[0]
        functions["formulas without truncation"] = lambda: verify_in_full(*one, 1.0, 0.6)
        functions["formulas, truncated by a sort"] = lambda: verify_in_full(
            truncate(one[0], 20, 0.95), *one[1:], 1.0, 0.6
        )
    shape = {"vocabulary": VOCABULARY, "proposals": PROPOSALS, "batch": 1, "sampling": str(sampling)}
    return told(shape, paired(functions, rounds, clock))


def told(shape: dict[str, Any], times: dict[str, dict[str, float]]) -> dict[str, Any]:
    """Print what was measured, and return it."""
    show(shape, times)
    return shape | {"times": times}


def noisy_copy(seed: int, vocabulary: int, proposals: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return logits, a draft whose logits are those and noise, and tokens drawn from it."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(1, proposals + 1, vocabulary, generator=generator) * 3
    noise = torch.randn(1, proposals, vocabulary, generator=generator) * NOISE
    draft = (logits[:, :-1] + noise).softmax(-1)
    return logits, draft, torch.multinomial(draft[0], 1, generator=generator).T


def ordinary(rounds: int, clock: str) -> list[dict[str, Any]]:
    """Return the times of the ordinary case, over all problems together, and how many proposals are accepted."""
    problems = [noisy_copy(seed, VOCABULARY, PROPOSALS) for seed in range(PROBLEMS)]
    generator = numbers(0)

    def verify_all(rule: str) -> list[int]:
        return [steps(rule, *problem, ORDINARY, generator)[0] for problem in problems]

    times = against_reading([logits for logits, _, _ in problems], verify_all, ORDINARY_RULES, rounds, clock)
    shape = {"vocabulary": VOCABULARY, "proposals": PROPOSALS, "batch": 1, "sampling": str(ORDINARY)}
    return [told(shape | {"draft's noise": NOISE}, times)]


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


def protected(rounds: int, clock: str) -> list[dict[str, Any]]:
    """Return what protection adds."""
    results = []
    for tokens in PROTECTED_TOKENS:
        shape: dict[str, Any] = {"what": "masked sum", "vocabulary": VOCABULARY, "rows": 10, "protected tokens": tokens}
        results.append(told(shape, measure_mass(VOCABULARY, tokens, rounds, clock)))
    for sampling in (ORDINARY, TRUNCATED):
        for rule in (RULE, "clamped:width=3"):
            shape = {"what": "step", "vocabulary": VOCABULARY, "proposals": 10, "protected tokens": PROTECTED_TOKENS[0]}
            times = measure_protected(VOCABULARY, PROTECTED_TOKENS[0], rule, sampling, rounds, clock)
            results.append(told(shape | {"rule": rule, "sampling": str(sampling)}, times))
    return results


def main() -> None:
    """Measure and write each case."""
    given = parse(__doc__, rounds=60, **TIMED, folder=RESULTS)
    torch.set_num_threads(given.threads)
    how = given.rounds, given.clock
    for name, measured in {
        "_ordinary": lambda: ordinary(*how),
        "_protected": lambda: protected(*how),
        "": lambda: [extremes(sampling, *how, sampling is TRUNCATED) for sampling in (TRUNCATED, PLAIN)],
    }.items():
        write(given.folder / f"verification{name}.json", {"results": measured()}, asked(given))


if __name__ == "__main__":
    main()
