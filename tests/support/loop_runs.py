"""Responses of the loop over tiny models, and how likely their first tokens are."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from cactus_decoding import SamplingParams, parse_rule
from cactus_decoding.core.drafting.registry import as_draft_length
from cactus_decoding.core.loop import decode
from cactus_decoding.core.policy.budget import as_budget
from cactus_decoding.core.types import Outcome
from cactus_decoding.core.verification.walk import Verifier

PROMPT = [1, 2, 3]
FALSE_ALARM = 1e-6
DRAWS = 3000


def begin(
    target, drafter, rule="lossless", k=4, seed=0, length=24, sampling=None, stop=lambda ids: False, budget=None
) -> Iterator[Outcome]:
    """Return the steps of a response, none of them taken yet."""
    sampling = sampling or SamplingParams()

    def to_probs(logits, _):
        return sampling(logits)

    return decode(
        target,
        drafter,
        PROMPT,
        Verifier(parse_rule(rule), to_probs, to_probs, budget=as_budget(budget)),
        to_probs,
        length=as_draft_length(k),
        max_length=length,
        stopping_criteria=stop,
        generator=torch.Generator().manual_seed(seed),
    )


def run(target, drafter, *given, **settings) -> list[Outcome]:
    """Return the steps of a response; the arguments are those of `begin`."""
    return list(begin(target, drafter, *given, **settings))


def decided(steps: list[Outcome]) -> list[tuple]:
    """Return what each step decided, without rows and times, so that runs can be compared."""
    return [(step.proposal.token_ids, step.path, step.token_ids, step.fates, step.finish_reason) for step in steps]


def tokens(steps: list[Outcome]) -> list[int]:
    return [token for step in steps for token in step.token_ids]


def chi_square(counts: torch.Tensor, law: torch.Tensor) -> tuple[float, int]:
    """Return Pearson's statistic, cells expected fewer than 5 times pooled, and its degrees of freedom."""
    counts, expected = counts.flatten().double(), law.flatten().double() * counts.sum()
    large = expected >= 5
    counts = torch.cat([counts[large], counts[~large].sum().view(1)])
    expected = torch.cat([expected[large], expected[~large].sum().view(1)])
    assert not ((expected == 0) & (counts > 0)).any(), "a token of probability zero was emitted"
    used = expected > 0
    return float(((counts - expected)[used].square() / expected[used]).sum()), int(used.sum()) - 1
