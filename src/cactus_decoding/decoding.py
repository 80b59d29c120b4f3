"""The draft-verify loop: a generator of steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

import torch

from cactus_decoding.draft_length import as_draft_length
from cactus_decoding.metrics import Metrics
from cactus_decoding.models import CachedModel
from cactus_decoding.sampling import check_drawn
from cactus_decoding.types import AcceptanceRule, Drafter, DraftLength, LogitsToProbs, RowByRow, TargetObserver
from cactus_decoding.verify import verify

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
        finish_reason: ``stop`` or ``length`` on the last step, else None.
    """

    token_ids: list[int]
    fates: list[Fate]
    num_drafted: int
    num_accepted: int
    num_relaxed: int
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
        )


@torch.inference_mode()
def decode(
    target: CachedModel,
    drafter: Drafter,
    prompt_ids: list[int],
    rule: AcceptanceRule,
    to_probs: LogitsToProbs,
    *,
    num_speculative_tokens: DraftLength | int,
    max_length: int,
    should_stop: StopCheck,
    generator: torch.Generator | None,
) -> Iterator[Step]:
    """Yield steps until a token ends the response or the sequence has ``max_length`` tokens.

    Arguments are taken as checked: `cactus_decoding.generate` is the entry that checks them. ``generator`` must be on
    the target's device.
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
        drafted, draft_probs = drafter.propose(ids, limit, to_probs, generator) if limit > 0 else ([], None)
        length.end_draft(len(drafted))
        block = ids + drafted
        target_probs = to_probs(target.append(block[target.length :], rows=len(drafted) + 1), block)
        result = verify(
            rule,
            target_probs,
            draft_probs,
            torch.tensor(drafted, dtype=torch.long, device=target_probs.device),
            generator,
            validate=False,
        )
        num_accepted, next_token = int(result.num_accepted), int(result.next_token)
        check_drawn("target", next_token, target_probs, len(ids) + num_accepted)
        target.rollback(len(ids) + num_accepted)
        length.end_step(num_accepted)

        relaxed = result.relaxed[:num_accepted].tolist()
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
        yield Step(emitted, fates[: len(emitted)], len(drafted), num_accepted, sum(relaxed), finish_reason)
