"""Proposes nothing, a copy, or what another drafter drafts, whichever a chooser takes."""

from __future__ import annotations

from typing import Any

from cactus_decoding.arguments.later import torch
from cactus_decoding.drafting.automatic.choosing import Chooser
from cactus_decoding.drafting.model import ModelDrafter
from cactus_decoding.drafting.suffix import SuffixDrafter
from cactus_decoding.drafting.suffix_index import Match
from cactus_decoding.models.base import num_shared
from cactus_decoding.types import Drafter, DraftLength, LogitsToProbs, Proposal


class ChoosingDrafter(Drafter):
    """Copies where the text repeats itself, asks another drafter where that pays, and else proposes nothing.

    The choice is made from the text and from what was kept before, never from what is drawn, so the law stays the
    rule's.

    So much of the text's end as ``shortest`` must have stood before for what followed to be copied.
    """

    def __init__(self, drafter: Drafter | None, chooser: Chooser, lookup: SuffixDrafter, shortest: int = 1) -> None:
        self._drafter, self._chooser, self._lookup, self._shortest = drafter, chooser, lookup, shortest
        self.max_length = None if drafter is None else drafter.max_length
        self._match, self._length = Match(0, [], []), 0  # behind the text as it was in the last step
        self._read: list[int] = []  # what the other drafter has seen

    def begin_response(self, target: Any, length: DraftLength) -> None:
        """Tell both."""
        self._lookup.begin_response(target, length)
        if self._drafter is not None:
            self._drafter.begin_response(target, length)
        if isinstance(self._drafter, ModelDrafter):
            self._drafter.singly = self._chooser.times.singly

    def reset(self) -> None:
        """Have the other drafter forget the last response."""
        if self._drafter is not None:
            self._drafter.reset()

    def propose(
        self, token_ids: list[int], limit: int, to_probs: LogitsToProbs, generator: torch.Generator | None
    ) -> Proposal:
        """Propose at most ``limit`` tokens."""
        self._lookup.follow(token_ids)
        self._chooser.learn_copies(self._match, token_ids[self._length :])
        self._match, self._length = self._lookup.longest(self._chooser.max_draft_tokens), len(token_ids)
        if self._match.size < self._shortest:
            self._match = Match(0, [], [])
        room = limit if self.max_length is None else min(limit, self.max_length - len(token_ids))
        unread = len(token_ids) - 1 - num_shared(self._read, token_ids[:-1])
        choice = self._chooser.choose(self._match, limit, room, unread, first=not self._read)
        if choice.way == "draft" and self._drafter is not None:
            proposal = self._drafter.propose(token_ids, choice.count, to_probs, generator)
            self._read = token_ids + proposal.token_ids[:-1]
            return proposal
        return Proposal(self._match.token_ids[: choice.count] if choice.way == "copy" else [], None)
