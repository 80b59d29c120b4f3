"""As many proposals as pay on this machine, which may be none: by measured pass times and what was kept."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field

from cactus_decoding.core.declared import Setting, check_fields
from cactus_decoding.core.drafting.automatic.choosing import Chooser
from cactus_decoding.core.drafting.automatic.times import PassTimes, known_times, pass_times
from cactus_decoding.core.drafting.lengths.base import PerResponse, StepSeconds
from cactus_decoding.core.drafting.lookup import LookUpDrafter, NgramDrafter, SuffixDrafter
from cactus_decoding.core.drafting.model import ModelDrafter
from cactus_decoding.core.drafting.suffix_index import Match
from cactus_decoding.core.models.base import BaseCachedModel, num_shared
from cactus_decoding.core.spelling import spell
from cactus_decoding.core.types import Drafter, DraftLength, LogitsToProbs, Proposal

__all__ = ["AutoLength"]


@dataclass(frozen=True)
class AutoLength(PerResponse):
    r"""Proposes nothing, copies what followed where the text repeats itself, or drafts: what brings most per second.

    What a pass costs is measured once for a pair of models, a machine and a number of threads, and kept in a file;
    what is kept of proposals is seen as the response grows. See `Chooser` for how a step is decided and what it can
    lose. Nothing is timed in a response: with a seed, the same file repeats it. What caches have kept is not looked at.

    Args:
        max_draft_tokens: proposals per step at most, 0 or more.
        profile: a file of pass times, as `PassTimes` keeps them; that of the pair on this machine, measured where there
            is none, if None.

    Raises:
        ValueError: for a parameter out of range, or, when a response begins, a file that is no profile.

    Example:
        >>> str(AutoLength()), AutoLength(max_draft_tokens=7).begin_step()
        ('auto', 7)
    """

    max_draft_tokens: Annotated[int, Field(ge=0, description="proposals per step at most"), Setting("tokens")] = 15
    profile: Annotated[str | None, Field(description="file of pass times"), Setting(metavar="FILE")] = None

    fixed: ClassVar[bool] = False

    def __str__(self) -> str:
        """Return the text that `as_draft_length` turns into this one."""
        return spell("auto", self)

    def __post_init__(self) -> None:
        check_fields(self)

    def begin_step(self) -> int:
        """Return the limit."""
        return self.max_draft_tokens

    def times(self, target: BaseCachedModel, drafter: Drafter, steps: StepSeconds | None = None) -> PassTimes:
        """Return what passes cost; measure them where that is not known."""
        return pass_times(target, drafter, steps) if self.profile is None else PassTimes.read(Path(self.profile))

    def decided_by(self, target: BaseCachedModel, drafter: Drafter) -> dict[str, Any] | None:
        """Return what passes cost, and where that is from; None where it is yet to be measured."""
        times = known_times(target, drafter) if self.profile is None else self.times(target, drafter)
        return None if times is None else {"source": times.source} | times.as_dict()

    def prepare(self, target: BaseCachedModel, drafter: Drafter, steps: StepSeconds) -> None:
        """Measure what passes cost, if that is not known."""
        self.times(target, drafter, steps)

    def start(self, target: BaseCachedModel, drafter: Drafter, num_tokens: int) -> tuple[DraftLength, Drafter]:
        """Return what chooses and what proposes in a response of up to so many tokens."""
        copies = isinstance(drafter, LookUpDrafter)
        chooser = Chooser(self.times(target, drafter), self.max_draft_tokens, drafts=not copies, num_tokens=num_tokens)
        shortest = drafter.min_ngram_size if isinstance(drafter, NgramDrafter) else 1
        lookup = drafter if isinstance(drafter, SuffixDrafter) else SuffixDrafter()
        return chooser, ChoosingDrafter(drafter, chooser, lookup, shortest)


class ChoosingDrafter(Drafter):
    """Copies where the text repeats itself, asks another drafter where that pays, and else proposes nothing.

    The choice is made from the text and from what was kept before, never from what is drawn, so the law stays the
    rule's. At least ``shortest`` tokens of the text's end must have stood before for what followed to be copied.
    """

    def __init__(self, drafter: Drafter, chooser: Chooser, lookup: SuffixDrafter, shortest: int = 1) -> None:
        self._drafter, self._chooser, self._lookup, self._shortest = drafter, chooser, lookup, shortest
        self.max_length = drafter.max_length
        self._match, self._length = Match(0, [], []), 0  # behind the text as it was in the last step
        self._read: list[int] = []  # what the other drafter has seen

    def begin_response(self, target: Any, length: DraftLength) -> None:
        """Tell both."""
        self._lookup.begin_response(target, length)
        self._drafter.begin_response(target, length)
        if isinstance(self._drafter, ModelDrafter):
            self._drafter.singly = self._chooser.times.singly

    def reset(self) -> None:
        """Have the other drafter forget the last response."""
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
        if choice.way == "draft":
            proposal = self._drafter.propose(token_ids, choice.count, to_probs, generator)
            self._read = token_ids + proposal.token_ids[:-1]
            return proposal
        return Proposal(self._match.token_ids[: choice.count] if choice.way == "copy" else [], None)
