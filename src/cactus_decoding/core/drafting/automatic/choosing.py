"""Decides in each step whether to propose nothing, to copy, or to draft, and how much."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from cactus_decoding.core.drafting.automatic.experience import STAKE, CopyChances, DraftChances, Experience, Rate
from cactus_decoding.core.drafting.lengths import StatelessLength, confidence
from cactus_decoding.core.drafting.suffix_index import Match

Way = Literal["nothing", "copy", "draft"]

SHARE = 0.01
"""Share of the time of plain sampling that may be lost on top of the stake."""
_GAINED, _AGAIN = 0.5, 0.05
"""Share of what was gained that may be lost at once, and share of the time that may be lost again by trying what has
failed."""
_RATE_MEMORY, _RATE_PASSES = 0.98, 20.0
"""Of a response, and as how many passes what earlier ones reached counts."""
_HORIZON = 128
"""Within so many tokens, the time in which the draft reads a prompt should come back."""
_FIRST = 3
"""How many tokens a draft may propose when nothing is known of it yet."""
_LEAST_READ = 8
"""A draft that could read fewer tokens of a text is not asked."""
_HOPE = 0.005
"""By so many tokens a step more is expected of the draft with each token for which it was not asked: what failed is
tried again, and what that costs is about so large a share of the time, however bad the draft is."""
_FEW = 2
"""More unread tokens than these are read once, and not in every step."""
_CHOOSING, _MOST_RESTS = 5e-5, 7
"""Seconds that a choice takes, and how many steps it may be left out of where it would take over 1 % of each."""


@dataclass(frozen=True, slots=True)
class LengthChoice:
    """What a step is to propose, and what it takes at most, in passes over one token.

    ``reading`` is how many tokens before the last one the draft reads for it.
    """

    way: Way
    count: int
    worst: float
    reading: int = 0


_NOTHING = LengthChoice("nothing", 0, 1.0)


class LengthChooser(StatelessLength):
    r"""Chooses the proposals of each step of one response so that the most tokens come per second.

    With r the tokens per second so far, a step of T expected tokens and C seconds is worth :math:`T - r C`, and the
    best one is taken (Dinkelbach, 1967), of those that cannot lose more than the stake holds. What a draft is worth
    follows from how sure it usually is, and how often it is right then: while it drafts, each row says whether the
    token is worth its place in the target's pass, and the next one its time. A response takes at no time longer than

    .. math:: (1 + \mathtt{SHARE}) \, t + \mathtt{STAKE} \, V(1),

    t being what plain sampling takes for as many tokens, and V(1) a pass over one; the draft's reading of the prompt
    is included. What is left of it is the stake. A reserve beside the stake sees to it that a draft that fails after it
    has gained much is left as soon, or when half of what the response was ahead is lost. Copies may lose all of the
    stake: how often they are kept, every token tells.

    Where it ``learns``, steps are timed, and the stake too goes by the clock. What is learnt is kept in
    ``experience``. If all responses together have lost their stake, the next one has two thirds of it. Else the times
    are the profile's, and the same tokens make the same choices.

    The time in which a draft reads the prompt is to come back within 128 tokens, or ``num_tokens`` if the response may
    have no more. Where it may not read all, it reads the end, if it can (``reads_ends``). ``drafts`` says whether there
    is anything to draft with.
    """

    fixed: ClassVar[bool] = False
    unsure = "propose"
    """What a draft is to do with the row after which it should not go on, see `ConfidenceStop`."""

    def __init__(
        self,
        experience: Experience,
        max_draft_tokens: int,
        *,
        drafts: bool,
        reads_ends: bool = True,
        num_tokens: int = _HORIZON,
        learns: bool = False,
    ) -> None:
        self._experience, self._times, self.learns = experience, experience.times, learns
        self.max_draft_tokens, self._drafts, self._reads_ends = max_draft_tokens, drafts, reads_ends
        self._horizon = max(1, min(_HORIZON, num_tokens))
        self._copies, self._kept = CopyChances(experience.copies), DraftChances(experience.drafts)
        self._stake_left = self._reserve = experience.stake
        self._rate, self._unasked = Rate(_RATE_MEMORY, experience.rate, _RATE_PASSES), 0.0
        self._price = 1.0  # tokens that a pass over one is worth, in this step
        self._forget_step()
        rests = int(_CHOOSING / (SHARE * self._times.plain))
        self._steps_to_rest, self._resting = min(rests, _MOST_RESTS), 0

    def _forget_step(self) -> None:
        """Forget what was noted of the last step; until `choose`, nothing is proposed."""
        self._choice = _NOTHING
        self._confidences: list[float] = []  # how sure the draft was of each proposal
        self._chance = 1.0  # that all of them are kept
        self._num_drafted = self._rows = 0  # proposals, and the draft's passes for them
        self._timed: tuple[float, float] | None = None

    def begin_step(self) -> int:
        """Return the limit, which is 0 in some short steps that follow one without proposals."""
        self._forget_step()
        self._resting -= 1
        return 0 if self._resting >= 0 else self.max_draft_tokens

    @property
    def way(self) -> Way:
        """Where the last step's proposals were from."""
        return self._choice.way

    @property
    def singly(self) -> int:
        """Up to how many unread tokens the draft should read one by one."""
        return self._times.profile.singly

    @property
    def allowed(self) -> float:
        """What a step of the draft may lose, in passes over one token."""
        return min(self._stake_left, self._reserve)

    def choose(self, match: Match, limit: int, room: int, unread: int, *, first: bool) -> LengthChoice:
        """Return the choice that is worth most.

        The context window of the draft has room for ``room`` proposals. The draft has ``unread`` tokens before the last
        one to read. Where these are all that it would ever have read (``first``), or many, their time is spread over
        the rest of the response.
        """
        best, most = _NOTHING, 0.0
        if self.learns and (self._times.doubtful or not self._times.known):
            return best  # which is timed
        for each, worth in self._options(match, limit, room, unread, first):
            if worth > most and each.worst - 1 <= (self._stake_left if each.way == "copy" else self.allowed):
                best, most = each, worth
        self._choice = best
        self._resting = self._steps_to_rest if best is _NOTHING else 0
        return best

    def _options(
        self, match: Match, limit: int, room: int, unread: int, first: bool
    ) -> Iterator[tuple[LengthChoice, float]]:
        """Yield choices, and what they are worth beside a step without proposals, in tokens."""
        passes, most, rate = self._times.passes, self._times.most, float(self._rate)
        expected = self._copies.tokens(match)
        for count in range(1, min(limit, len(match.token_ids)) + 1):
            yield LengthChoice("copy", count, most(count)), expected[count] - 1 - rate * (passes[count] - 1)
        if not self._drafts or room < 1:
            return
        reads = self._readable(unread)
        if reads < min(unread, _LEAST_READ if self._reads_ends else unread):
            return
        reading, draft = self._times.reading(reads), self._times.draft
        worst, depth = 1 + draft + reading, 0  # where the first row is discarded
        again = most(1) + draft - 1  # what a longer draft leaves for a next one: one failure must not be the last
        for count in range(1, min(room, self._longest) + 1):
            longer = max(worst, most(count) + count * draft + reading)
            if longer - 1 > min(self._stake_left - again * (count > 1), self._reserve):
                break
            worst, depth = longer, count
        if not depth:
            return
        share = min(4 / self._horizon, 1.0) if first or unread > _FEW else 1.0
        for self._price in (rate, 1.0):
            worth = self._kept.worth(self._price, draft, passes, depth) - self._price * share * reading
            if worth > 0 or depth == room:  # else what was gained so far allows too little: a gain allows more
                break
        yield LengthChoice("draft", depth, worst, reads), worth + _HOPE * self._unasked

    @property
    def _longest(self) -> int:
        """How many tokens the draft may propose, as far as anything is known of it."""
        if self._times.untimed:
            return 1
        known = self._experience.tried and not self._times.guessed
        return self.max_draft_tokens if known else _FIRST

    def _readable(self, unread: int) -> int:
        """Return how many of these tokens the draft may read, the last ones, in half of what may be lost."""
        if self._times.untimed and self._reads_ends:
            unread = min(unread, _LEAST_READ)
        allowed, low, high = self.allowed / 2, 0, unread
        if self._times.reading(unread) <= allowed:
            return unread
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._times.reading(middle) <= allowed else (low, middle)
        return low

    def should_continue(self, logits: Tensor) -> bool:
        sure, price, passes = confidence(logits), self._price, self._times.passes
        self._confidences.append(sure)
        self._chance *= self._kept.of(sure)
        drafted, more = len(self._confidences), 0.0
        if drafted < self._choice.count:
            more = self._kept.worth(price, self._times.draft, passes, self._choice.count, drafted, self._chance)
        worth = self._chance - price * (passes[drafted] - passes[drafted - 1])
        self.unsure = "discard" if worth + max(more, 0.0) < 0 else "propose"
        return more > 0 and self.unsure == "propose"

    def end_draft(self, num_drafted: int) -> None:
        """Proposals without a row count as sure."""
        self._num_drafted, self._rows = num_drafted, len(self._confidences) or max(num_drafted, 1)
        if self._choice.way == "draft":
            self._confidences += [1.0] * (num_drafted - len(self._confidences))

    def timed(self, width: int, drafting: float, passing: float) -> None:
        """Called before `end_step` with the seconds of drafting, and of the target's pass and the decision.

        The target has read ``width`` tokens, those that a constraint forced and the unread ones of a prompt included.
        """
        if width == self._num_drafted + 1 and passing > 0:  # else it also read a prompt, or what a constraint forced
            self._timed = drafting, passing

    @property
    def _drafting(self) -> float:
        """What drafting takes in this step."""
        if self._choice.way != "draft":
            return 0.0
        return self._rows * self._times.draft + self._times.reading(self._choice.reading)

    def end_step(self, num_accepted: int) -> None:
        emitted, choice, drafted, times = num_accepted + 1, self._choice, self._num_drafted, self._times
        self._unasked += emitted
        if choice.way == "draft":
            self._unasked, self._experience.tried = 0.0, True
            self._kept.learn(self._confidences or [0.0], drafted, num_accepted)
        if self.learns and self._timed is not None:
            taken = times.learn(drafted, self._drafting, *self._timed)
        else:
            taken = times.most(drafted) + self._drafting
        self._rate.learn(emitted, taken)
        self._experience.rate.learn(emitted, taken)
        lost = 0.0 if choice is _NOTHING else taken - emitted
        self._stake_left += SHARE * emitted - lost
        self._reserve = min(max(STAKE, _GAINED * self._stake_left), self._reserve + _AGAIN * emitted - lost)
        self._experience.balance += SHARE * emitted - lost

    def learn_copies(self, match: Match, token_ids: list[int]) -> None:
        self._copies.learn(match, token_ids)
