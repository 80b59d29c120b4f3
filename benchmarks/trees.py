"""Time verification of trees of 16 proposals against a log-sum-exp of the rows of all of them, which a step has anyway.

Three cases: proposals from a noisy copy of the target; every judged one accepted; and the text's children excluded, so
that the walk ends at once. Nothing is truncated, and one child of each token is drawn.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from itertools import accumulate
from operator import mul
from typing import Any

import torch
from pairing import TIMED, benchmark, show
from torch import Tensor
from verification import NOISE, ORDINARY, PROBLEMS, against_reading, numbers

from cactus_decoding.core.drafting.trees.shape import StaticTree
from cactus_decoding.core.rules import parse_rule
from cactus_decoding.core.types import ROOT, Proposal
from cactus_decoding.core.verification.walk import Verifier

RULES = ("lossless", "cactus:delta=1", "clamped:width=3")
SHAPES = ("4.1.1.1", "2.1.1.1.1.1.1.1")
"""Of 16 tokens each, 4 and 8 deep."""
CASES = ("ordinary", "all accepted", "the text's children excluded")
VOCABULARY = 151_936


def tree(seed: int, shape: str, case: str) -> tuple[Tensor, Proposal]:
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


def times_of(shape: str, case: str, rounds: int, clock: str) -> dict[str, dict[str, float]]:
    """Return the times of a step, on average over all problems, and how many proposals are kept."""
    problems = [tree(seed, shape, case) for seed in range(PROBLEMS)]

    def verify_all(name: str) -> list[int]:
        rule, generator = parse_rule(name), numbers(0)
        verifier = Verifier(rule, lambda logits, _: ORDINARY(logits), lambda logits, _: logits.softmax(-1), ORDINARY)
        steps = (
            verifier(verifier.begin(), logits, proposal.token_ids, proposal, generator) for logits, proposal in problems
        )
        return [outcome.num_accepted for _, outcome in steps]

    times = against_reading([logits for logits, _ in problems], verify_all, RULES, rounds, clock)
    depth = StaticTree(shape).max_draft_tokens
    expected = {"all accepted": depth, "the text's children excluded": 0}.get(case)
    assert expected is None or all(times[rule]["accepted"] == expected for rule in RULES)
    return times


def measure(given: Namespace) -> Iterator[dict[str, Any]]:
    results = []
    for name in SHAPES:
        for case in CASES:
            times = times_of(name, case, given.rounds, given.clock)
            shape = {"vocabulary": VOCABULARY, "tree": name, "case": case, "sampling": str(ORDINARY)}
            show(shape, times)
            results.append({**shape, "times": times})
            yield {"results": results}


if __name__ == "__main__":
    benchmark(__doc__, "verification_trees", measure, rounds=30, **TIMED)
