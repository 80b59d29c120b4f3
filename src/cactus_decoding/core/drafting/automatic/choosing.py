"""Decides in each step whether to propose nothing, to copy, or to draft, and how much."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar, Literal

from torch import Tensor

from cactus_decoding.core.drafting.lengths.base import StatelessLength, confidence
from cactus_decoding.core.drafting.suffix_index import Match
from cactus_decoding.core.drafting.timing import PassTimes


class Rates:
    """Running rates of success, each beginning with a guess that counts as ``weight`` observations.

    An observation keeps a share of its weight (``memory``) when another one of its kind comes. ``tried`` further
    observations agree with the guess at the start, and fade like others.
    """

    def __init__(self, guesses: Sequence[float], weight: float, memory: float, tried: float = 0.0) -> None:
        self._guesses, self._weight, self._memory = list(guesses), weight, memory
        self._seen, self._kept = [tried] * len(guesses), [tried * guess for guess in guesses]

    def __getitem__(self, kind: int) -> float:
        guessed = self._guesses[kind] * self._weight
        return (guessed + self._kept[kind]) / (self._weight + self._seen[kind])

    def learn(self, kind: int, kept: bool) -> None:
        self._seen[kind] = self._memory * self._seen[kind] + 1
        self._kept[kind] = self._memory * self._kept[kind] + kept

    def forget(self, share: float) -> None:
        self._seen = [share * seen for seen in self._seen]
        self._kept = [share * kept for kept in self._kept]


_SUPPORT = (2, 3, 4, 6, 9, 16, 32)
"""The support of a copied token (see `Match`) is of the next kind from each of these on."""
_COPIED = (0.2, 0.35, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)


class CopyChances:
    """How often the text goes on as it did before, by what supports that; see `Match`.

    Every token tells, proposed or not, so a text that begins to repeat itself is noticed at no cost.
    """

    def __init__(self) -> None:
        self._rates = Rates(_COPIED, weight=3, memory=0.97)

    def learn(self, match: Match, token_ids: Sequence[int]) -> None:
        for support, one, other in zip(match.support, match.token_ids, token_ids, strict=False):
            self._rates.learn(bisect_right(_SUPPORT, support), one == other)
            if one != other:
                break

    def tokens(self, match: Match) -> list[float]:
        """Return how many tokens a step is expected to bring with 0, 1, ... of the tokens after a match."""
        chance, expected = 1.0, [1.0]
        for support in match.support:
            chance *= self._rates[bisect_right(_SUPPORT, support)]
            expected.append(expected[-1] + chance)
        return expected


_BUCKETS = 10
_FADES = 0.985
"""Share of its weight that an observation of the draft keeps with each token for which it is not asked."""


class DraftChances:
    """How often a draft's tokens are kept, by how sure it was, and overall.

    It begins with a high guess, so that a draft is tried once, as far as an account of losses allows.
    """

    def __init__(self) -> None:
        guesses = [(i + 0.5) / _BUCKETS for i in range(_BUCKETS - 1)] + [0.98]
        self._by_confidence = Rates(guesses, weight=3, memory=0.98)
        self._overall = Rates([0.95], weight=1, memory=0.92, tried=2)  # texts often begin with a refusal

    @property
    def next(self) -> float:
        """How likely a proposal is kept of whose row nothing is known."""
        return self._overall[0]

    def of(self, confidence: float) -> float:
        """Return how likely a token is kept that was drawn from a row whose likeliest token has this probability."""
        return self._by_confidence[self._kind(confidence)]

    def learn(self, confidences: Sequence[float], num_accepted: int) -> None:
        """Learn from a step; nothing is known of proposals after the first rejection."""
        for i, each in enumerate(confidences[: num_accepted + 1]):
            self._by_confidence.learn(self._kind(each), i < num_accepted)
            self._overall.learn(0, i < num_accepted)

    def fade(self, num_tokens: int) -> None:
        self._by_confidence.forget(_FADES**num_tokens)
        self._overall.forget(_FADES**num_tokens)

    @staticmethod
    def _kind(confidence: float) -> int:
        return min(int(_BUCKETS * confidence), _BUCKETS - 1)


Way = Literal["nothing", "copy", "draft"]

STAKE = 12.0
"""How much time may be lost before anything was gained, in passes over one token; the account is capped at it."""
SHARE = 0.01
"""Share of the time of plain sampling that may be lost on top."""
_RATE_MEMORY = 0.98
_HORIZON = 128
"""Within so many tokens, the time in which the draft reads a prompt should come back."""
_FIRST = 3
"""How many tokens a draft may propose when nothing is known of it yet."""
_CHOOSING, _MOST_RESTS = 5e-5, 7
"""Seconds that a choice takes, and how many steps it may be left out of where it would take over 1 % of each."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What a step is to propose, and the ``tokens`` that it is expected to bring, with the recovered or bonus token."""

    way: Way
    count: int
    tokens: float
    seconds: float


class Chooser(StatelessLength):
    r"""Chooses the proposals of each step of one response so that the most tokens come per second, by given pass times.

    With r the tokens per second so far, a step of T expected tokens and C seconds is worth :math:`T - r C`, and the
    best one is taken (Dinkelbach, 1967). Nothing is timed while it runs: the same times and the same tokens make the
    same choices. By these times, a response never takes longer than

    .. math:: (1 + \mathtt{SHARE}) \, t + \mathtt{STAKE} \, V(1),

    t being what plain sampling takes for as many tokens and V(1) a pass over one, plus what the draft needs to read the
    prompt: only a step that cannot lose more than the account holds is taken.

    The time in which a draft reads the prompt is to come back within 128 tokens, or ``num_tokens`` if the response may
    have no more; ``drafts`` says whether there is anything to draft with, beside copying.
    """

    fixed: ClassVar[bool] = False

    def __init__(self, times: PassTimes, max_draft_tokens: int, *, drafts: bool, num_tokens: int = _HORIZON) -> None:
        self._horizon = max(1, min(_HORIZON, num_tokens))
        self.times, self.max_draft_tokens, self._drafts = times, max_draft_tokens, drafts
        self._plain_rate = 1 / times.of(1)
        self._counts = [width - 1 for width in times.widths if 1 < width <= max_draft_tokens + 1]
        # by how many proposals; a draft that proposes nothing has taken time too
        self._passes = [times.of(count + 1) for count in range(max_draft_tokens + 1)]
        self._drafting = [times.of(1) + times.draft, *(times.step(count) for count in range(1, max_draft_tokens + 1))]
        # the longest draft step of up to so many, as one may stop early without a shorter pass
        self._longest = [*accumulate(self._drafting, max)]
        self._copies, self._kept = CopyChances(), DraftChances()
        self._account, self._tried = STAKE, False
        self._tokens = self._seconds = 0.0
        self._plain = Choice("nothing", 0, 1.0, times.of(1))
        self._take(self._plain, 0.0)
        self._rests, self._resting = min(int(_CHOOSING / (SHARE * self._plain.seconds)), _MOST_RESTS), 0

    def begin_step(self) -> int:
        """Return the limit, which is 0 in some short steps that follow one without proposals."""
        self._take(self._plain, 0.0)
        self._resting -= 1
        return 0 if self._resting >= 0 else self.max_draft_tokens

    @property
    def rate(self) -> float:
        """Recent tokens per second, by the given times; at least that of plain sampling."""
        return max(self._plain_rate, self._tokens / self._seconds if self._seconds else 0.0)

    def choose(self, match: Match, limit: int, room: int, unread: int, *, first: bool) -> Choice:
        """Return the choice that is worth most.

        The context window of the draft has room for ``room`` proposals. The draft has ``unread`` tokens before the last
        one to read; where these are the whole text (``first``), their time is spread over the rest of the response.
        """
        rate, reading = self.rate, self.times.catching_up(unread)
        catching_up = 0.0 if first else reading
        best, most = self._plain, (1.0 - rate * self._plain.seconds, 0)
        for each in self._options(match, limit, room, reading, first):
            worth = each.tokens - rate * each.seconds, -each.count
            if worth > most and self._worst(each, catching_up) <= self._account:
                best, most = each, worth
        self._take(best, catching_up if best.way == "draft" else 0.0)
        self._resting = self._rests if best is self._plain else 0
        return best

    def _options(self, match: Match, limit: int, room: int, reading: float, first: bool) -> Iterator[Choice]:
        found = min(limit, len(match.token_ids))
        if found and self._counts:
            expected = self._copies.tokens(match)
            for count in {*(count for count in self._counts if count <= found), found}:
                yield Choice("copy", count, expected[count], self._passes[count])
        room = room if self._tried else min(room, _FIRST)
        for count in self._counts if self._drafts else ():
            if count <= room:
                tokens = _geometric(self._kept.next, count)
                share = min(1.0, tokens / self._horizon) if first else 1.0
                yield Choice("draft", count, tokens, self._drafting[count] + share * reading)

    def _take(self, choice: Choice, catching_up: float) -> None:
        self._choice, self._catching_up = choice, catching_up
        self._confidences: list[float] = []
        self._chance, self._num_drafted = 1.0, 0

    def _worst(self, choice: Choice, catching_up: float) -> float:
        """Return how many tokens a choice may lose: a draft may also stop early."""
        seconds = choice.seconds if choice.way == "copy" else self._longest[choice.count] + catching_up
        return self._loss(seconds, 1)

    def should_continue(self, logits: Tensor) -> bool:
        sure = confidence(logits)
        self._confidences.append(sure)
        self._chance *= self._kept.of(sure)
        drafted, rate, following = len(self._confidences), self.rate, self._kept.next
        for count in (count for count in self._counts if drafted < count <= self._choice.count):
            more = count - drafted
            tokens = self._chance * (_geometric(following, more) - 1)
            seconds = self._passes[count] - self._passes[drafted] + more * self.times.draft
            if tokens > rate * seconds:
                return True
        return False

    def end_draft(self, num_drafted: int) -> None:
        """Proposals without a row count as sure."""
        self._num_drafted = num_drafted
        if self._choice.way == "draft":
            self._confidences += [1.0] * (num_drafted - len(self._confidences))

    def end_step(self, num_accepted: int) -> None:
        emitted = num_accepted + 1
        taken = self._drafting if self._choice.way == "draft" else self._passes
        seconds = taken[self._num_drafted] + self._catching_up
        if self._choice.way == "draft":
            self._tried = True
            self._kept.learn(self._confidences or [0.0], num_accepted)
        elif self._drafts:
            self._kept.fade(emitted)
        self._tokens = _RATE_MEMORY * self._tokens + emitted
        self._seconds = _RATE_MEMORY * self._seconds + seconds
        lost = self._loss(seconds, emitted) if self._choice.way != "nothing" else 0.0
        self._account = min(STAKE, self._account - lost + SHARE * emitted)

    def learn_copies(self, match: Match, token_ids: list[int]) -> None:
        self._copies.learn(match, token_ids)

    def _loss(self, seconds: float, num_tokens: float) -> float:
        """Return how many more tokens plain sampling would have brought in that time."""
        return seconds * self._plain_rate - num_tokens


def _geometric(rate: float, count: int) -> float:
    """Return 1 + rate + rate^2 + ... up to ``count`` powers."""
    return count + 1.0 if rate == 1 else (1 - rate ** (count + 1)) / (1 - rate)
