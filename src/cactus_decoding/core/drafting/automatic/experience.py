"""What steps teach: how long they take, and how often proposals are kept. Responses hand it on to the next ones."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from cactus_decoding.core.drafting.suffix_index import Match
from cactus_decoding.core.drafting.timing import PassTimes

STAKE = 3.0
"""How much time may be lost before anything was gained, in passes over one token."""


class Rates:
    """Running rates of success by kind, each beginning with a guess that counts as ``weight`` observations.

    An observation keeps a share of its weight (``memory``) when another one of its kind comes, and so does the guess.
    """

    def __init__(self, guesses: Iterable[float], weight: float, memory: float) -> None:
        self._kept = [weight * guess for guess in guesses]
        self._seen, self._memory = [weight] * len(self._kept), memory

    def __getitem__(self, kind: int) -> float:
        return self._kept[kind] / self._seen[kind]

    def __iter__(self) -> Iterator[float]:
        return (kept / seen for kept, seen in zip(self._kept, self._seen, strict=True))

    def learn(self, kind: int, kept: bool) -> None:
        self._seen[kind] = self._memory * self._seen[kind] + 1
        self._kept[kind] = self._memory * self._kept[kind] + kept


_LONG_MEMORY, _MEMORY = 0.995, 0.95
"""Of what is handed on, and of what is learnt in a response."""
_SUPPORT = (2, 3, 4, 6, 9, 16, 32)
"""The support of a copied token (see `Match`) is of the next kind from each of these on."""
_COPIED = (0.1, 0.2, 0.3, 0.4, 0.6, 0.75, 0.9, 0.95)


class CopyChances:
    """How often the text goes on as it did before, by what supports that; see `Match`.

    Every token tells, proposed or not, so a text that begins to repeat itself is noticed at no cost.
    """

    def __init__(self, earlier: CopyChances | None = None) -> None:
        self._earlier = None if earlier is None else earlier._rates
        self._rates: Rates = Rates(self._earlier or _COPIED, 4, _LONG_MEMORY if earlier is None else _MEMORY)

    def learn(self, match: Match, token_ids: Sequence[int]) -> None:
        for support, one, other in zip(match.support, match.token_ids, token_ids, strict=False):
            kind = bisect_right(_SUPPORT, support)
            self._rates.learn(kind, one == other)
            if self._earlier is not None:
                self._earlier.learn(kind, one == other)
            if one != other:
                break

    def tokens(self, match: Match) -> list[float]:
        """Return how many tokens a step is expected to bring with 0, 1, ... of the tokens after a match."""
        chance, expected = 1.0, [1.0]
        for support in match.support:
            chance *= self._rates[bisect_right(_SUPPORT, support)]
            expected.append(expected[-1] + chance)
        return expected


_SURE = (0.3, 0.5, 0.7, 0.85, 0.95)
"""A row is of the next kind from each of these probabilities of its likeliest token on."""
_DRAFTED, _SHARES = (0.2, 0.4, 0.6, 0.75, 0.88, 0.97), (0.02, 0.04, 0.07, 0.08, 0.09, 0.7)
"""How often tokens of each kind are kept, and how many rows are of it: high guesses, so that a draft is tried."""
_ROWS = 12.0
"""As how many rows the guess of their kinds counts."""


class DraftChances:
    """How sure the draft is, how often its tokens are kept where it is so sure, and what asking it is worth.

    A response begins with what earlier ones saw.
    """

    def __init__(self, earlier: DraftChances | None = None) -> None:
        self._earlier = earlier
        self._memory = _LONG_MEMORY if earlier is None else _MEMORY
        self._kept: Rates = Rates(_DRAFTED if earlier is None else earlier._kept, 8, self._memory)
        self._rows = [_ROWS * share for share in (_SHARES if earlier is None else earlier.shares)]

    @property
    def shares(self) -> list[float]:
        """How many of the rows are of each kind."""
        total = sum(self._rows)
        return [each / total for each in self._rows]

    def of(self, confidence: float) -> float:
        """Return how likely a token is kept that was drawn from a row whose likeliest token has this probability."""
        return self._kept[bisect_right(_SURE, confidence)]

    def learn(self, confidences: Sequence[float], num_drafted: int, num_accepted: int) -> None:
        """Learn from a step whose last row may have been discarded; after a rejection rows are of another text."""
        for i, each in enumerate(confidences[: num_accepted + 1]):
            kind = bisect_right(_SURE, each)
            self._rows = [self._memory * rows for rows in self._rows]
            self._rows[kind] += 1
            if i < num_drafted:
                self._kept.learn(kind, i < num_accepted)
        if self._earlier is not None:
            self._earlier.learn(confidences, num_drafted, num_accepted)

    def worth(self, draft: float, passes: Sequence[float], depth: int) -> list[float]:
        r"""Return what it is worth to draft on after 0, 1, ... up to ``depth`` kept tokens, in tokens.

        ``draft`` is what a draft's pass takes, and ``passes`` what the target takes for 0, 1, ... proposals, in the
        time of a token. With :math:`s_i` the share of rows of a kind, :math:`a_i` how often their tokens are kept, and
        :math:`v_n` what verification takes longer for the next token,

        .. math:: w_n = -d + \sum_i s_i \max(0, a_i (1 + \max(0, w_{n + 1})) - v_n), \quad w_{\mathtt{depth}} = 0.
        """
        found = [0.0] * (depth + 1)
        kinds = [*zip(self.shares, self._kept, strict=True)]
        for n in range(depth - 1, -1, -1):
            found[n] = _one_more(kinds, draft, passes[n + 1] - passes[n], 1 + max(0.0, found[n + 1]))
        return found

    def one_more(self, draft: float, verifying: float, tokens: float) -> float:
        """Return what the next row is worth if its token, once kept, brings so many."""
        return _one_more(zip(self.shares, self._kept, strict=True), draft, verifying, tokens)


def _one_more(kinds: Iterable[tuple[float, float]], draft: float, verifying: float, tokens: float) -> float:
    return sum(share * max(0.0, kept * tokens - verifying) for share, kept in kinds) - draft


_LONGEST = 3.0
"""How many times as long as expected a step may take: the rest is an interruption by something else."""
_CHANGED, _PATIENCE = math.log(1.25), 4
"""How far steps must be off to time a pass over one token again, and after how many steps at the earliest."""
_SEEN = 3
"""After so many steps, their times are believed and not the profile's."""


class StepTimes:
    """What steps take, in passes over one token: by a profile at first, then by the steps themselves.

    Passes over one token tell how fast the machine is just now, and all others how long they take beside these.

    Attributes:
        profile: what was measured before.
        plain: seconds of a pass over one token.
        known: whether ``plain`` was measured by the clock of responses.
        doubtful: whether it should be measured again, because other passes have changed.
        passes: what the target takes for 0, 1, ... proposals; between measured widths they are on a line.
    """

    def __init__(self, profile: PassTimes, max_draft_tokens: int) -> None:
        self.profile, self.plain, self.known, self.doubtful = profile, profile.of(1), False, False
        self._most = [profile.of(1 + count) / self.plain for count in range(max_draft_tokens + 1)]
        widths, seconds = zip(*profile.target, strict=True)
        self.passes = [
            float(np.interp(1 + count, widths, seconds)) / self.plain if count < widths[-1] else most
            for count, most in enumerate(self._most)
        ]
        self._before, self._seen = [*self.passes], [0] * len(self.passes)
        self._slower = 1 / self.plain  # of what the draft takes
        self._off, self._since, self._num_drafts = 0.0, 0, 0

    @property
    def draft(self) -> float:
        """What a proposal takes in drafting."""
        return self.profile.draft * self._slower

    def most(self, count: int) -> float:
        """Return what the target takes at most for so many proposals: between measured widths, as for the next one."""
        return max(self._most[count], self.passes[count]) if self._seen[count] < _SEEN else 1.1 * self.passes[count]

    def reading(self, unread: int) -> float:
        """Return what the draft takes to read so many tokens before the last one."""
        return self.profile.catching_up(unread) * self._slower

    def learn(self, num_proposed: int, expected: float, drafting: float, passing: float) -> float:
        """Learn from a step, and return what the target took: what it usually takes, where that is known.

        So nobody pays for what interrupts a step. ``expected`` is what drafting should have taken, in passes over one
        token; the other two are seconds.
        """
        ratio = passing / self.plain / self.passes[num_proposed]
        if num_proposed == 0:
            ratio = _limited(ratio) if self.known else ratio  # the profile may be by another clock
            changed, sure = abs(math.log(ratio)) > _CHANGED, self.doubtful or not self.known
            if self.known and changed:  # other passes were misjudged meanwhile
                self.passes = [*self._before]
            self.plain *= ratio if sure else ratio**0.3
            self.known, self.doubtful, self._off, self._since = True, changed and not sure, 0.0, 0
            self._before = [*self.passes]
        elif self.known:
            self._off, self._since = 0.7 * self._off + 0.3 * math.log(_limited(ratio)), self._since + 1
            self.doubtful = abs(self._off) > _CHANGED and self._since >= _PATIENCE
            self.doubtful |= passing < 0.9 * self.plain  # more tokens do not take less time
        if num_proposed and self.known:
            self._correct(num_proposed, _limited(ratio))
        if expected and self.known:
            self._num_drafts += 1
            slower = _limited(drafting / self.plain / expected)
            self._slower *= slower ** max(0.1, 1 / (1 + self._num_drafts))
        usual = self.passes[num_proposed]
        return max(usual, min(passing / self.plain, _LONGEST * usual)) if self._seen[num_proposed] < _SEEN else usual

    def _correct(self, count: int, ratio: float) -> None:
        """Correct what so many proposals take, and with them those next to them that were never timed."""
        self._seen[count] += 1
        ratio **= max(0.05, 1 / (1 + self._seen[count]))
        widths = self.profile.widths
        block = bisect_left(widths, count + 1)
        for other, seen in enumerate(self._seen):
            if other == count or (not seen and bisect_left(widths, other + 1) == block):
                self.passes[other] *= ratio


def _limited(ratio: float) -> float:
    return min(max(ratio, 1 / _LONGEST), _LONGEST)


_LEAST = 2.0
"""What a response may lose at least, or bad luck in one would keep all others from a draft that pays."""


class Experience:
    """What responses of one pair of models learn: times, chances, and what they may lose.

    Attributes:
        balance: by how many passes over one token all responses have fallen short of what they might lose; those that
            gain pay for those that lose.
    """

    def __init__(self, profile: PassTimes, max_draft_tokens: int) -> None:
        self.times = StepTimes(profile, max_draft_tokens)
        self.copies, self.drafts, self.tried, self.balance = CopyChances(), DraftChances(), False, STAKE

    @property
    def stake(self) -> float:
        """How much time the next response may lose before it has gained anything."""
        return min(STAKE, max(self.balance, _LEAST))
