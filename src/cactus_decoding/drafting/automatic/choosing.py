"""Decides in each step whether to propose nothing, to copy, or to draft, and how much."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from cactus_decoding.arguments.later import Tensor
from cactus_decoding.drafting.automatic.chances import CopyChances, DraftChances
from cactus_decoding.drafting.automatic.times import PassTimes
from cactus_decoding.drafting.lengths.base import LearnsNothing
from cactus_decoding.drafting.lengths.confidence import confidence
from cactus_decoding.drafting.suffix_index import Match

Way = Literal["nothing", "copy", "draft"]

STAKE = 12.0
"""Tokens' time that may be lost before anything was gained; gains beyond it are not put at risk again."""
SHARE = 0.01
"""Of the time that plain sampling would have taken, what may be lost besides."""
_RATE_MEMORY = 0.98
_HORIZON = 128
"""Tokens within which the time of reading a prompt with the draft should come back."""


@dataclass(frozen=True)
class Choice:
    """What a step is to propose.

    Attributes:
        way: where from.
        count: of tokens.
        tokens: that the step is expected to bring, the recovered or bonus token included.
        seconds: that it takes.
    """

    way: Way
    count: int
    tokens: float
    seconds: float


class Chooser(LearnsNothing):
    r"""Chooses the proposals of each step of one response so that the most tokens come per second, by given pass times.

    With r the tokens per second so far, a step of T expected tokens and C seconds is worth :math:`T - r C`, and the
    best one is taken (Dinkelbach, 1967). Nothing is timed while it runs: the same times and the same tokens make the
    same choices. By these times, a response never takes longer than

    .. math:: (1 + \mathtt{SHARE}) \, t + \mathtt{STAKE} \, V(1),

    t being what plain sampling takes for as many tokens and V(1) a pass over one, beside what the draft needs to read
    the prompt: only a step that cannot lose more than the account holds is taken.

    Within ``num_tokens``, which the response may have, and within 128, the time in which a draft reads the prompt is to
    come back; ``drafts`` says whether there is anything to draft with, beside copying.
    """

    fixed: ClassVar[bool] = False

    def __init__(self, times: PassTimes, max_draft_tokens: int, *, drafts: bool, num_tokens: int = _HORIZON) -> None:
        self._horizon = max(1, min(_HORIZON, num_tokens))
        self.times, self.max_draft_tokens, self._drafts = times, max_draft_tokens, drafts
        self._plain_rate = 1 / times.of(1)
        self._counts = [width - 1 for width in times.widths if 1 < width <= max_draft_tokens + 1]
        self._copies, self._kept = CopyChances(), DraftChances()
        self._account = STAKE
        self._tokens = self._seconds = 0.0
        self._take(Choice("nothing", 0, 1.0, times.of(1)), 0.0)

    def begin_step(self) -> int:
        """Return how many tokens may be proposed at most; nothing, where nobody asks to choose."""
        self._take(Choice("nothing", 0, 1.0, self.times.of(1)), 0.0)
        return self.max_draft_tokens

    @property
    def rate(self) -> float:
        """Tokens per second of late, by the given times; that of plain sampling at least."""
        return max(self._plain_rate, self._tokens / self._seconds if self._seconds else 0.0)

    def choose(self, match: Match, limit: int, room: int, unread: int, *, first: bool) -> Choice:
        """Return what is worth most.

        The context window of the draft has room for ``room`` proposals; it has ``unread`` tokens before the last one to
        read, and where these are the whole text (``first``), that is an outlay for the rest of the response.
        """
        times, rate = self.times, self.rate
        reading = times.catching_up(unread)
        options = [Choice("nothing", 0, 1.0, times.of(1))]
        found = min(limit, len(match.token_ids))
        if found:
            expected = self._copies.tokens(match)
            counts = {count for count in self._counts if count <= found} | ({found} if self._counts else set())
            options += [Choice("copy", count, expected[count], self._seconds_of("copy", count)) for count in counts]
        if self._drafts:
            for count in (count for count in self._counts if count <= room):
                tokens = _geometric(self._kept.next, count)
                share = min(1.0, tokens / self._horizon) if first else 1.0
                seconds = self._seconds_of("draft", count) + share * reading
                options.append(Choice("draft", count, tokens, seconds))
        catching_up = 0.0 if first else reading
        allowed = options[:1] + [each for each in options[1:] if self._worst(each, catching_up) <= self._account]
        best = max(allowed, key=lambda each: (each.tokens - rate * each.seconds, -each.count))
        self._take(best, catching_up if best.way == "draft" else 0.0)
        return best

    def _take(self, choice: Choice, catching_up: float) -> None:
        self._choice, self._catching_up = choice, catching_up
        self._confidences: list[float] = []
        self._chance, self._num_drafted = 1.0, 0

    def _worst(self, choice: Choice, catching_up: float) -> float:
        """Return how many tokens a choice may lose: a draft may also stop early, where a pass need not take less."""
        if choice.way == "copy":
            return self._loss(choice.seconds, 1)
        return self._loss(max(self._seconds_of("draft", i) for i in range(choice.count + 1)) + catching_up, 1)

    def _seconds_of(self, way: Way, count: int) -> float:
        """Return the seconds of a step of so many proposals; a draft that proposes nothing has been asked in vain."""
        times = self.times
        drafting = max(count, 1) * times.draft if way == "draft" else 0.0
        return times.of(count + 1) + drafting

    def should_continue(self, logits: Tensor) -> bool:
        """Say, after a token drawn from a row of the draft, whether any number of further ones is worth its time."""
        sure = confidence(logits)
        self._confidences.append(sure)
        self._chance *= self._kept.of(sure)
        drafted, times, following = len(self._confidences), self.times, self._kept.next
        for count in (count for count in self._counts if drafted < count <= self._choice.count):
            more = count - drafted
            tokens = self._chance * (_geometric(following, more) - 1)
            seconds = times.of(count + 1) - times.of(drafted + 1) + more * times.draft
            if tokens > self.rate * seconds:
                return True
        return False

    def end_draft(self, num_drafted: int) -> None:
        """Hear how many tokens were proposed; proposals without a row are as sure as can be."""
        self._num_drafted = num_drafted
        if self._choice.way == "draft":
            self._confidences += [1.0] * (num_drafted - len(self._confidences))

    def end_step(self, num_accepted: int) -> None:
        """Enter the step into the account, and learn from it."""
        emitted = num_accepted + 1
        seconds = self._seconds_of(self._choice.way, self._num_drafted) + self._catching_up
        if self._choice.way == "draft":
            self._kept.learn(self._confidences or [0.0], num_accepted)
        else:
            self._kept.fade(emitted)
        self._tokens = _RATE_MEMORY * self._tokens + emitted
        self._seconds = _RATE_MEMORY * self._seconds + seconds
        lost = self._loss(seconds, emitted) if self._choice.way != "nothing" else 0.0
        self._account = min(STAKE, self._account - lost + SHARE * emitted)

    def learn_copies(self, match: Match, token_ids: list[int]) -> None:
        """Hear what came where a match was followed by other tokens, or the same."""
        self._copies.learn(match, token_ids)

    def _loss(self, seconds: float, num_tokens: float) -> float:
        """Return how many tokens plain sampling would have brought besides."""
        return seconds * self._plain_rate - num_tokens


def _geometric(rate: float, count: int) -> float:
    """Return 1 + rate + rate^2 + ... up to ``count`` powers: the tokens of a step whose proposals are kept alike."""
    return 1 + sum(rate**i for i in range(1, count + 1))
