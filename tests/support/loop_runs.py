"""Responses of the loop over tiny models."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from cactus_decoding import SamplingParams, parse_rule
from cactus_decoding.core.drafting.registry import as_draft_length
from cactus_decoding.core.loop import check_limit, check_nodes, decode
from cactus_decoding.core.policy.budget import as_budget
from cactus_decoding.core.types import Outcome, Proposal
from cactus_decoding.core.verification.walk import Verifier

PROMPT = [1, 2, 3]


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
        draft_length=as_draft_length(k),
        max_length=length,
        stopping_criteria=stop,
        generator=torch.Generator().manual_seed(seed),
    )


def run(target, drafter, *given, **settings) -> list[Outcome]:
    return list(begin(target, drafter, *given, **settings))


def decided(steps: list[Outcome]) -> list[tuple]:
    """Return what each step decided, without rows and times, so that runs can be compared."""
    return [(step.proposal.token_ids, step.path, step.token_ids, step.fates, step.finish_reason) for step in steps]


def tokens(steps: list[Outcome]) -> list[int]:
    return [token for step in steps for token in step.token_ids]


def check_proposal(proposal: Proposal, limit: int, vocabulary: int) -> None:
    """Raise `ValueError` for what the loop refuses of a drafter."""
    check_nodes(proposal, vocabulary)
    check_limit(proposal, limit)
