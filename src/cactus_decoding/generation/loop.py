"""The draft-verify loop: a generator of steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

import torch

from cactus_decoding.drafting.lengths import as_draft_length
from cactus_decoding.generation.metrics import Metrics
from cactus_decoding.models.cached import CachedModel
from cactus_decoding.sampling.drawing import check_drawn
from cactus_decoding.types import Drafter, DraftLength, LogitsToProbs, Proposal, RowByRow, TargetObserver, Verifier

StopCheck = Callable[[list[int]], bool]
"""Says, given all the tokens so far, whether the last one ends the response."""


class Fate(StrEnum):
    """How an emitted token came about."""

    ACCEPTED = "accepted"
    RELAXED = "relaxed"
    RECOVERED = "recovered"
    BONUS = "bonus"


@dataclass(frozen=True)
class Step:
    """One round of drafting and verifying.

    Attributes:
        token_ids: what it emitted, cut after a token that ends the response.
        fates: of each emitted token.
        num_drafted: tokens proposed.
        num_accepted: proposals that the rule kept, before any cut.
        num_relaxed: those among them that the lossless test would have rejected.
        nats: what each visited position cost (the accepted ones and the rejected one), where a budget measures it.
        num_fell_back: visited positions where the budget could not afford the rule.
        finish_reason: ``stop`` or ``length`` on the last step, else None.
    """

    token_ids: list[int]
    fates: list[Fate]
    num_drafted: int
    num_accepted: int
    num_relaxed: int
    nats: list[float] | None = None
    num_fell_back: int = 0
    finish_reason: str | None = None

    def metrics(self) -> Metrics:
        """Return this step's counts."""
        return Metrics(
            steps=1,
            drafted=self.num_drafted,
            accepted=self.num_accepted,
            relaxed=self.num_relaxed,
            recovered=int(self.num_accepted < self.num_drafted),
            bonus=int(self.num_accepted == self.num_drafted),
            generated=len(self.token_ids),
            metered=len(self.nats or ()),
            nats=sum(self.nats or ()),
            fell_back=self.num_fell_back,
        )


@torch.inference_mode()
def decode(
    target: CachedModel,
    drafter: Drafter,
    prompt_ids: list[int],
    verifier: Verifier,
    to_probs: LogitsToProbs,
    *,
    num_speculative_tokens: DraftLength | int,
    max_length: int,
    should_stop: StopCheck,
    generator: torch.Generator | None,
) -> Iterator[Step]:
    """Yield steps until a token ends the response or the sequence has ``max_length`` tokens.

    Arguments are taken as checked: `cactus_decoding.generate` is the entry that checks them. ``verifier`` serves this
    one response; ``to_probs`` is what the draft samples with; ``generator`` must be on the target's device.
    """
    ids = list(prompt_ids)
    target.reset()
    if isinstance(drafter, TargetObserver):
        drafter.attach(target)
    length = as_draft_length(num_speculative_tokens)
    length.begin_response()
    if isinstance(drafter, RowByRow):
        drafter.heed(length)
    finish_reason = None
    while finish_reason is None:
        limit = min(length.begin_step(), max_length - len(ids) - 1)  # one place is for the next token
        proposal = drafter.propose(ids, limit, to_probs, generator) if limit > 0 else Proposal([], None)
        drafted = proposal.token_ids
        length.end_draft(len(drafted))
        block = ids + drafted
        logits = target.append(block[target.length :], rows=len(drafted) + 1)
        num_accepted, next_token, relaxed, nats, fell_back = verifier(logits, block, proposal, generator)
        check_drawn("target", next_token, logits, len(ids) + num_accepted)
        target.rollback(len(ids) + num_accepted)
        length.end_step(num_accepted)

        fates = [Fate.RELAXED if r else Fate.ACCEPTED for r in relaxed]
        fates.append(Fate.RECOVERED if num_accepted < len(drafted) else Fate.BONUS)
        emitted: list[int] = []
        for token in [*drafted[:num_accepted], next_token]:
            emitted.append(token)
            ids.append(token)
            if should_stop(ids):
                finish_reason = "stop"
                break
            if len(ids) >= max_length:
                finish_reason = "length"
                break
        yield Step(
            emitted,
            fates[: len(emitted)],
            num_drafted=len(drafted),
            num_accepted=num_accepted,
            num_relaxed=sum(relaxed),
            nats=nats,
            num_fell_back=sum(fell_back),
            finish_reason=finish_reason,
        )
