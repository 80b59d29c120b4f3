"""Propose as many tokens as are worth their time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field
from torch import Tensor

from cactus_decoding.core.declared import Setting, check_fields
from cactus_decoding.core.drafting.lengths.base import confidence
from cactus_decoding.core.drafting.timing import DraftCost, StepCosts, TokenCost
from cactus_decoding.core.spelling import spell

_BUCKETS = 10
_MEMORY = 0.99
"""Share of its weight that an observation keeps from one step to the next."""
_PRIOR_WEIGHT = 2.0


@dataclass
class AdaptiveLength:
    r"""Goes on while a further proposal gains more tokens than its time is worth, to emit the most tokens per second.

    With r the tokens per second reached so far and c the seconds of one more proposal, it goes on while

    .. math:: P(\text{all proposals so far are kept}) \, P(\text{the next one is kept}) > r c.

    At the best possible r this rule attains it, and r grows until then (Dinkelbach, 1967). Chances are running rates of
    acceptance, one for each tenth of the draft's confidence (the probability of its likeliest token), or a single one
    for a drafter without probabilities. Seconds are measured.

    What is learnt is kept for the object's lifetime. Since no time is measured twice the same, a seed gives the same
    tokens again only on a new object that was given both costs; the distribution of the tokens is the rule's in any
    case.

    Args:
        max_draft_tokens: proposals per step at most, 1 or more; there is always at least one.
        draft_cost: time of a draft forward over that of a target forward on one token; None measures.
        token_cost: time by which each proposal lengthens a target forward, in the same unit; None measures.

    Raises:
        ValueError: for a parameter out of range, or only one of the two costs.

    Example:
        >>> AdaptiveLength(max_draft_tokens=8, draft_cost=0.1, token_cost=0.02).begin_step()
        8
    """

    max_draft_tokens: Annotated[int, Field(ge=1, description="proposals per step at most"), Setting("tokens")] = 16
    draft_cost: DraftCost = None
    token_cost: TokenCost = None

    fixed: ClassVar[bool] = False

    def __str__(self) -> str:
        return spell("adaptive", self)

    def __post_init__(self) -> None:
        """Begin with the guess that a token is kept as often as the draft is sure of it."""
        check_fields(self)
        self._costs = StepCosts(self.draft_cost, self.token_cost)
        self._seen = np.full(_BUCKETS, _PRIOR_WEIGHT)
        self._kept = self._seen * (np.arange(_BUCKETS) + 0.5) / _BUCKETS
        self._buckets: list[int] = []  # of this step's proposals
        self._chance = 1.0

    def begin_response(self) -> None:
        """Keep the time of reading the prompt out of the measurements."""
        self._costs.begin_response()

    def begin_step(self) -> int:
        """Return how many proposals would be worth their time if the draft were as sure as can be."""
        self._costs.begin_step()
        self._buckets, self._chance = [], 1.0
        sure, count = float(self._kept[-1] / self._seen[-1]), 1
        while count < self.max_draft_tokens and sure ** (count + 1) > self._worth:
            count += 1
        return count

    def should_continue(self, logits: Tensor) -> bool:
        bucket = min(int(_BUCKETS * confidence(logits)), _BUCKETS - 1)
        self._buckets.append(bucket)
        self._chance *= float(self._kept[bucket] / self._seen[bucket])
        of_the_next = float(self._kept.sum() / self._seen.sum())
        return self._chance * of_the_next > self._worth

    def end_draft(self, num_drafted: int) -> None:
        """Proposals without a row count as sure."""
        self._buckets += [_BUCKETS - 1] * (num_drafted - len(self._buckets))
        self._costs.end_draft(num_drafted)

    def end_step(self, num_accepted: int) -> None:
        """Learn from what was kept; nothing is known of proposals after the first rejection."""
        self._costs.end_step(num_accepted + 1)
        kept, seen = self._kept * _MEMORY, self._seen * _MEMORY
        for i, bucket in enumerate(self._buckets[: num_accepted + 1]):
            kept[bucket] += i < num_accepted
            seen[bucket] += 1
        self._kept, self._seen = kept, seen  # together, or an interruption would leave rates above 1

    @property
    def _worth(self) -> float:
        return self._costs.rate * self._costs.of_a_proposal
