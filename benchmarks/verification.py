"""Time verification from logits against a log-sum-exp of the same rows, which a step has anyway. Cases, a file each:

- `ordinary`: 10 proposals drawn from a noisy copy of the target, nothing truncated;
- `protected`: the same with tokens protected, and how many tokens are looked at for that;
- `extremes`: every proposal accepted, and the first one rejected, beside whole-tensor formulas of Cactus;
- `trees`: of 16 proposals: from a noisy copy; all judged ones accepted; and the text's children excluded, so that the
  walk ends at once. One child of each token is drawn.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from operator import mul
from typing import Any

import torch
from pairing import RESULTS, TIMED, Times, asked, paired, paired_per_problem, parse, told, write
from torch import Tensor
from torch.nn.functional import one_hot

from cactus_decoding.core.drafting.trees.shape import StaticTree
from cactus_decoding.core.policy.phases import Phases
from cactus_decoding.core.policy.position import Position
from cactus_decoding.core.policy.protection import Protection, may_relax
from cactus_decoding.core.policy.relaxation import FittedPolicy
from cactus_decoding.core.policy.vocabulary import Vocabulary
from cactus_decoding.core.rules import parse_rule
from cactus_decoding.core.sampling.params import SamplingParams
from cactus_decoding.core.sampling.rows import LazyRows
from cactus_decoding.core.types import ROOT, Proposal, StepRows
from cactus_decoding.core.verification.walk import Verifier

TRUNCATED = SamplingParams(temperature=0.6, top_p=0.95, top_k=20)
PLAIN = SamplingParams(temperature=0.6)
ORDINARY = SamplingParams()
RULE = "cactus:delta=1"
ORDINARY_RULES = ("lossless", RULE, "clamped:width=1", "clamped:width=3")
TREE_RULES = ("lossless", RULE, "clamped:width=3")
VOCABULARY, PROPOSALS = 151_936, 10
PROTECTED_TOKENS = (32, 1_110)
"""About what digits are to a tokenizer that splits numbers, and to one that has tokens of up to three digits."""
NOISE, PROBLEMS = 0.5, 8
"""Standard deviation of what the draft adds to the target's logits, of which lossless sampling accepts four in five;
and how many sets of rows a round goes through, so that accepted and rejected proposals have their usual proportion."""
TREES = ("4.1.1.1", "2.1.1.1.1.1.1.1")
"""Of 16 tokens each, 4 and 8 deep."""
TREE_CASES = ("ordinary", "all accepted", "the text's children excluded")
ROWS = {"vocabulary": VOCABULARY, "proposals": PROPOSALS, "batch": 1}
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


def verified(rule: str, sampling: SamplingParams, problems: Sequence[Problem]) -> list[int]:
    verifier, generator = verifier_of(rule, sampling), numbers(0)
    return [accepted(verifier, problem, generator) for problem in problems]


def against_reading(problems: Sequence[Problem], rules: Sequence[str], rounds: int, clock: str) -> Times:
    """Return the times of rules on all problems, relative to a log-sum-exp of these, and how many are accepted."""

    def read() -> None:
        for logits, _ in problems:
            logits.logsumexp(-1)

    functions: dict[str, Callable[[], list[int] | None]] = {"logsumexp": read}
    functions |= {rule: partial(verified, rule, ORDINARY, problems) for rule in rules}
    return paired_per_problem(functions, len(problems), rounds, clock)


def ordinary(rounds: int, clock: str) -> Iterator[dict[str, Any]]:
    times = against_reading([noisy_copy(seed) for seed in range(PROBLEMS)], ORDINARY_RULES, rounds, clock)
    yield told(ROWS | {"sampling": str(ORDINARY), "draft's noise": NOISE}, times)


def extremes(rounds: int, clock: str) -> Iterator[dict[str, Any]]:
    """Yield the times where all proposals are accepted, or the first is rejected; once, of whole formulas too."""
    for sampling in (TRUNCATED, PLAIN):
        logits = torch.randn(PROPOSALS + 1, VOCABULARY, generator=numbers(0)) * 3
        proposal = drawn_from(sampling(logits[:-1]), numbers(0))
        first = int(logits[0].argmin())  # the draft is sure of a token that the target excludes
        probs = torch.cat([one_hot(torch.tensor([first]), VOCABULARY).float(), proposal.probs[1:]])
        wrong = Proposal([first, *proposal.token_ids[1:]], probs)
        functions: dict[str, Callable[[], Any]] = {"logsumexp": partial(logits.logsumexp, -1)}
        for case, made in (("all accepted", proposal), ("first rejected", wrong)):
            for name, rule in (("lossless", "lossless"), ("cactus", RULE)):
                functions[f"{name}, {case}"] = partial(verified, rule, sampling, [(logits, made)])
        assert functions["cactus, all accepted"]() == [PROPOSALS]
        assert functions["cactus, first rejected"]() == [0]
        if sampling is TRUNCATED:
            functions["formulas without truncation"] = partial(in_full, logits, proposal)
            functions["formulas, truncated by a sort"] = partial(in_full, logits, proposal, cut=True)
        yield told(ROWS | {"sampling": str(sampling)}, paired(functions, rounds, clock))


def truncated(logits: Tensor) -> Tensor:
    """Mask what top-k and top-p cut, by a sort of every row."""
    ascending, order = logits.sort(-1)
    ascending[..., : logits.shape[-1] - TRUNCATED.top_k] = -torch.inf
    dropped = ascending.softmax(-1).cumsum(-1) <= 1 - TRUNCATED.top_p
    dropped[..., -1] = False
    return torch.full_like(logits, -torch.inf).scatter_(-1, order, ascending.masked_fill_(dropped, -torch.inf))


def in_full(logits: Tensor, proposal: Proposal, *, cut: bool = False, delta: float = 1.0) -> int:
    """Verify proposals by Cactus as whole-tensor formulas, every row in full, and return the token that follows.

    Restated from the formulas of the paper (Hao and Mou, arXiv 2604.04987): a softmax of every row, h over the whole
    vocabulary for every proposal, the residual of every proposal, and a draw from each.
    """
    draft, drafted = proposal.probs, torch.tensor(proposal.token_ids).unsqueeze(-1)
    probs = torch.softmax((truncated(logits) if cut else logits) / PLAIN.temperature, dim=-1)
    target = probs[:-1]
    q, p = target.gather(-1, drafted), draft.gather(-1, drafted)
    lifted = (q + torch.sqrt(2 * delta * q * (1 - q))).clamp(max=1.0)
    relaxed = (target * ((1 - lifted) / (1 - q).clamp(min=1e-10))).scatter(-1, drafted, lifted)
    kept = (torch.rand_like(p) * p < lifted).squeeze(-1)
    residual = (relaxed - draft).clamp(min=0)
    total = residual.sum(-1, keepdim=True)
    recovered = torch.multinomial(torch.where(total > 0, residual / total, target), 1)
    bonus = torch.multinomial(probs[-1], 1)
    count = int(kept.long().cumprod(0).sum())
    return int(bonus) if count == len(drafted) else int(recovered[count])


def policy_of(tokens: int) -> FittedPolicy:
    """Return a policy that protects this many tokens, spread over the vocabulary, at the usual threshold."""
    mask = torch.zeros(VOCABULARY, dtype=torch.bool)
    mask[torch.arange(tokens) * (VOCABULARY // tokens)] = True
    return FittedPolicy(Vocabulary(("",) * VOCABULARY), Phases(), Protection("digits"), mask)


def protected(rounds: int, clock: str) -> Iterator[dict[str, Any]]:
    """Yield the time of the sum over protected tokens, and what protection adds to a step."""
    shape: dict[str, Any] = {"what": "masked sum", "vocabulary": VOCABULARY, "rows": 10}
    for tokens in PROTECTED_TOKENS:
        yield told(shape | {"protected tokens": tokens}, masked_sums(tokens, rounds, clock))
    shape = {"what": "step", "vocabulary": VOCABULARY, "proposals": 10, "protected tokens": PROTECTED_TOKENS[0]}
    for sampling in (ORDINARY, TRUNCATED):
        for rule in (RULE, "clamped:width=3"):
            times = protected_steps(rule, sampling, rounds, clock)
            yield told(shape | {"rule": rule, "sampling": str(sampling)}, times)


def masked_sums(tokens: int, rounds: int, clock: str) -> Times:
    """Return the time of the masked sum of ten rows beside that of reading them: of rows, and of what is made of them.

    Logits are the usual start, of which verification has made probabilities already.
    """
    logits, policy = noisy_copy(0)[0][:10], policy_of(tokens)
    probs, token_ids, mask = logits.softmax(-1), policy.token_ids, policy.mask
    assert token_ids is not None and mask is not None and policy.protection is not None  # noqa: PT018
    whole = StepRows(torch.cat([logits, logits[-1:]]), [0] * 10, Proposal([0] * 10, None), *[lambda rows, _: rows] * 2)
    known = [Position(whole, node - 1, LazyRows(logits, ORDINARY)) for node in range(10)]
    assert all(len(position.row.probs) == VOCABULARY for position in known)
    threshold = policy.protection.threshold
    return paired({
        "logsumexp": lambda: logits.logsumexp(-1),
        "masked sum, rows known": lambda: [may_relax(position.mass(token_ids), threshold) for position in known],
        "masked sum of probabilities": lambda: probs.index_select(-1, token_ids).double().sum(-1),
        "product with a whole mask": lambda: probs @ mask.float(),
    }, rounds, clock)  # fmt: skip


def protected_steps(rule: str, sampling: SamplingParams, rounds: int, clock: str) -> Times:
    """Return the times of a step without protection, with it, and with it from whole rows, over all problems.

    Protected tokens are unlikely in all rows, so that the three decide the same and only the looking differs.
    """
    policy, problems = policy_of(PROTECTED_TOKENS[0]), list[Problem]()
    for seed in range(PROBLEMS):
        logits, proposal = noisy_copy(seed)
        probs = sampling(proposal.probs.log() - 15 * policy.mask)
        problems.append((logits - 15 * policy.mask, drawn_from(probs, numbers(seed))))
    verifiers = {
        "unprotected": verifier_of(rule, sampling),
        "protected": verifier_of(rule, sampling, policy),
        "protected, from whole rows": verifier_of(rule, sampling, policy, lazy=False),
    }

    def verify_all(verifier: Verifier) -> list[int]:
        return [accepted(verifier, problem, numbers(seed)) for seed, problem in enumerate(problems)]

    functions = {name: partial(verify_all, verifier) for name, verifier in verifiers.items()}
    assert functions["unprotected"]() == functions["protected"]() == functions["protected, from whole rows"]()
    return paired_per_problem(functions, PROBLEMS, rounds, clock)


def tree(seed: int, shape: str, case: str) -> Problem:
    """Return the target's logits, ``[nodes + 1, vocabulary]``, and the tree that a draft proposes."""
    generator, branching = numbers(seed), StaticTree(shape).branching
    logits = torch.randn(sum(accumulate(branching, mul)) + 1, VOCABULARY, generator=generator) * 3
    token_ids, parents, drawn, rows, level = list[int](), list[int](), list[bool](), list[Tensor](), [ROOT]
    for count in branching:
        new = []
        for parent in level:
            row = (logits[parent + 1] + torch.randn(VOCABULARY, generator=generator) * NOISE).softmax(-1)
            fixed = row.topk(count - 1).indices
            last = int(torch.multinomial(row.scatter(0, fixed, 0.0), 1, generator=generator))
            if case == "all accepted":
                logits[parent + 1, last] = logits[parent + 1].logsumexp(-1)  # half of the row: more than p
            if case == "the text's children excluded" and parent == ROOT:
                logits[0, [*fixed.tolist(), last]] = -30.0
            new += range(len(token_ids), len(token_ids) + count)
            token_ids += [*fixed.tolist(), last]
            parents += [parent] * count
            drawn += [False] * (count - 1) + [True]
            rows.append(row)
        level = new
    return logits, Proposal(token_ids, torch.stack(rows), parents, drawn)


def trees(rounds: int, clock: str) -> Iterator[dict[str, Any]]:
    """Yield the times of a step, on average over all problems, and how many proposals are kept."""
    for shape in TREES:
        for case in TREE_CASES:
            problems = [tree(seed, shape, case) for seed in range(PROBLEMS)]
            times = against_reading(problems, TREE_RULES, rounds, clock)
            depth = StaticTree(shape).max_draft_tokens
            expected = {"all accepted": depth, "the text's children excluded": 0}.get(case)
            assert expected is None or all(times[rule]["accepted"] == expected for rule in TREE_RULES)
            yield told({"vocabulary": VOCABULARY, "tree": shape, "case": case, "sampling": str(ORDINARY)}, times)


CASES = {
    "ordinary": (ordinary, "verification_ordinary"), "protected": (protected, "verification_protected"),
    "extremes": (extremes, "verification"), "trees": (trees, "verification_trees"),
}  # fmt: skip


def main(given: Namespace) -> None:
    torch.set_num_threads(given.threads)
    for case in given.cases:
        measure, name = CASES[case]
        write(given.folder / f"{name}.json", {"results": [*measure(given.rounds, given.clock)]}, asked(given))


if __name__ == "__main__":
    main(parse(__doc__, rounds=60, **TIMED, cases=([*CASES], {"choices": CASES}), folder=RESULTS))
