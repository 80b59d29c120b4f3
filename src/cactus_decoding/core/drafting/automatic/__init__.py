"""As many proposals as are fastest on this machine, by pass times and by what was kept."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import torch

from cactus_decoding.core.declared import Setting, check_fields
from cactus_decoding.core.drafting.automatic.choosing import LengthChooser
from cactus_decoding.core.drafting.automatic.experience import Experience, experience_of
from cactus_decoding.core.drafting.lengths import StatelessLength
from cactus_decoding.core.drafting.lookup import LookUpDrafter, NgramDrafter, SuffixDrafter
from cactus_decoding.core.drafting.measuring import StepSeconds, known_times, pass_times, place_of_pair
from cactus_decoding.core.drafting.model import ModelDrafter
from cactus_decoding.core.drafting.suffix_index import Match
from cactus_decoding.core.drafting.timing import PassTimes
from cactus_decoding.core.models.base import BaseCachedModel, num_shared
from cactus_decoding.core.spelling import spell
from cactus_decoding.core.types import Drafter, DraftLength, LogitsToProbs, Proposal

__all__ = ["AutoLength"]


@dataclass(frozen=True)
class AutoLength(StatelessLength):
    """Chooses in each step what brings most tokens per second: no proposals, copying from the text, or drafting.

    Pass times are measured once for a pair of models, a machine and a number of threads, and kept in a file. From then
    on each response learns how long steps take and how many proposals are kept, and hands that on to the next one, also
    in another process; see `LengthChooser` for how a step is decided and what it can lose. A response whose text
    depends on what is proposed, and whose seed the user gave, learns no times, and nothing from other responses: its
    seed and the same file of times repeat it.

    Args:
        max_draft_tokens: proposals per step at most, 0 or more.
        profile: a file of pass times, as `PassTimes` keeps them; by default that of the pair on this machine, which is
            measured if there is none.
        learns: ``unseeded``: where no seed has to repeat the choices; or ``always``, as for measuring with seeds how
            fast it is without them.

    Raises:
        ValueError: for a parameter out of range, or, when a response begins, a file that is no profile.

    Example:
        >>> str(AutoLength()), AutoLength(max_draft_tokens=7).begin_step()
        ('auto', 7)
    """

    max_draft_tokens: Annotated[int, Setting("proposals per step at most", "tokens", ge=0)] = 15
    profile: Annotated[str | None, Setting("file of pass times", metavar="FILE")] = None
    learns: Annotated[Literal["unseeded", "always"], Setting("whether a given seed stops it learning")] = "unseeded"

    fixed: ClassVar[bool] = False

    def __str__(self) -> str:
        return spell("auto", self)

    def __post_init__(self) -> None:
        check_fields(self)

    def begin_step(self) -> int:
        return self.max_draft_tokens

    def times(self, target: BaseCachedModel, drafter: Drafter, steps: StepSeconds | None = None) -> PassTimes:
        return pass_times(target, drafter, steps) if self.profile is None else PassTimes.read(Path(self.profile))

    def decided_by(self, target: BaseCachedModel, drafter: Drafter) -> dict[str, Any] | None:
        """Return the pass times and where they are from; None if they are yet to be measured."""
        times = known_times(target, drafter) if self.profile is None else self.times(target, drafter)
        return None if times is None else {"source": times.source} | times.as_dict()

    def prepare(self, target: BaseCachedModel, drafter: Drafter, steps: StepSeconds) -> None:
        """Measure what responses on these models need to know; the caches of both are empty afterwards."""
        self.times(target, drafter, steps)

    def start(
        self, target: BaseCachedModel, drafter: Drafter, num_tokens: int, *, free: bool = False
    ) -> tuple[DraftLength, Drafter]:
        """Return what chooses and what proposes in a response of up to so many tokens.

        Where it is ``free``, choices may depend on how long steps take: no seed has to repeat them.
        """
        copies, learns = isinstance(drafter, LookUpDrafter), free or self.learns == "always"
        times = self.times(target, drafter)
        if learns:
            place = place_of_pair(target, drafter)[0] if self.profile is None else Path(self.profile)
            experience = experience_of(place, times, self.max_draft_tokens, kept=self.profile is None)
        else:
            experience = Experience(times, self.max_draft_tokens)
        chooser = LengthChooser(
            experience,
            self.max_draft_tokens,
            drafts=not copies,
            reads_ends=isinstance(drafter, ModelDrafter),
            num_tokens=num_tokens,
            learns=learns,
        )
        shortest = drafter.min_ngram_size if isinstance(drafter, NgramDrafter) else 1
        lookup = drafter if isinstance(drafter, SuffixDrafter) else SuffixDrafter()
        return chooser, ChoosingDrafter(drafter, chooser, lookup, shortest)


class ChoosingDrafter(Drafter):
    """Copies where the text repeats itself, asks another drafter where that pays, and else proposes nothing.

    The choice follows from the text, from times and from what was kept before, never from what is drawn, so the
    output's distribution stays the rule's. Copying needs at least ``shortest`` tokens of the text's end to have stood
    before.
    """

    def __init__(self, drafter: Drafter, chooser: LengthChooser, lookup: SuffixDrafter, shortest: int = 1) -> None:
        self._drafter, self._chooser, self._lookup, self._shortest = drafter, chooser, lookup, shortest
        self.max_length = drafter.max_length
        self._match, self._length = Match(0, [], []), 0  # after the text as it was in the last step
        self._read: list[int] = []  # what the other drafter has seen

    def begin_response(self, target: Any, draft_length: DraftLength) -> None:
        self._lookup.begin_response(target, draft_length)
        self._drafter.begin_response(target, draft_length)
        if isinstance(self._drafter, ModelDrafter):
            self._drafter.singly = self._chooser.singly

    def reset(self) -> None:
        self._drafter.reset()

    def propose(
        self, token_ids: list[int], limit: int, to_probs: LogitsToProbs, generator: torch.Generator | None
    ) -> Proposal:
        self._lookup.follow(token_ids)
        self._chooser.learn_copies(self._match, token_ids[self._length :])
        self._match, self._length = self._lookup.longest(self._chooser.max_draft_tokens), len(token_ids)
        if self._match.size < self._shortest:
            self._match = Match(0, [], [])
        room = limit if self.max_length is None else min(limit, self.max_length - len(token_ids))
        first, unread = not self._read, len(token_ids) - 1 - num_shared(self._read, token_ids[:-1])
        cache = getattr(self._drafter, "model_cache", None)
        if first and cache is not None and self._chooser.learns:  # else it does not matter what caches have kept
            unread -= min(cache.num_kept(token_ids), unread)
        choice = self._chooser.choose(self._match, limit, room, unread, first=first)
        if choice.way == "draft":
            if choice.reading < unread and isinstance(self._drafter, ModelDrafter):
                self._drafter.start = len(token_ids) - 1 - choice.reading
            proposal = self._drafter.propose(token_ids, choice.count, to_probs, generator)
            self._read = token_ids + proposal.token_ids[:-1]
            return proposal
        return Proposal(self._match.token_ids[: choice.count] if choice.way == "copy" else [], None)
