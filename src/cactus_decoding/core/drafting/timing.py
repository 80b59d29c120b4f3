"""How long steps take: by passes that were measured before, and then by the steps themselves."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np

from cactus_decoding.core.files.jsonl import read_as, read_json

Clock = Callable[[], float]
BUSY = "measured now on a busy machine, and not kept"
_SINGLY = 8


@dataclass(frozen=True)
class PassTimes:
    """Seconds of forward passes, of which only the ratios matter.

    ``target`` pairs numbers of tokens, ascending from 1, with the target's seconds for them; where passes are short,
    with what else a step takes. ``draft`` is for one proposal, 0 for a drafter that copies; ``reading`` for a token
    that the drafter has not read yet, in a longer pass; ``pair`` for a proposal after such a token, 0 if unknown.
    """

    target: tuple[tuple[int, float], ...]
    draft: float = 0.0
    reading: float = 0.0
    source: str = "given"
    pair: float = 0.0

    def __post_init__(self) -> None:
        widths = [width for width, _ in self.target]
        if widths[:1] != [1] or widths != sorted(set(widths)):
            raise ValueError(f"widths of passes must ascend from 1, but are {widths}")
        seconds = [seconds for _, seconds in self.target]
        drafts = self.draft, self.reading, self.pair
        if not all(map(math.isfinite, (*seconds, *drafts))) or min(seconds) <= 0 or min(drafts) < 0:
            raise ValueError(f"seconds of passes must be positive, but are {self.target}, {drafts}")

    @property
    def widths(self) -> list[int]:
        return [width for width, _ in self.target]

    @property
    def guessed(self) -> bool:
        """Whether the machine was so busy that even the ratios may be wrong."""
        return self.source == BUSY

    def of(self, width: int) -> float:
        """Return the seconds of the target's pass over so many tokens: those of the next measured width."""
        for known, seconds in self.target:
            if known >= width:
                return seconds
        known, seconds = self.target[-1]
        return seconds * width / known

    def step(self, count: int) -> float:
        """Return the seconds of a step in which so many tokens are drafted, in a pass each, and verified."""
        return self.of(count + 1) + count * self.draft

    def catching_up(self, unread: int) -> float:
        """Return how much longer drafting takes where so many tokens before the last one are unread."""
        return unread * self.draft if unread <= self.singly else self._together(unread)

    @cached_property
    def singly(self) -> int:
        """Up to how many such tokens are faster read one by one: kernels may take long for two or three rows."""
        return sum(1 for _ in takewhile(lambda count: count * self.draft < self._together(count), range(1, _SINGLY)))

    @property
    def lag(self) -> float:
        """The seconds that a proposal takes longer after one unread token."""
        return max(self.pair - self.draft, 0.0) if self.pair else self.reading

    def _together(self, unread: int) -> float:
        return self.lag + (unread - 1) * self.reading if unread else 0.0

    def as_dict(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name != "source"}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], source: str) -> PassTimes:
        return replace(read_as(cls, values, f"{source} holds no times of passes"), source=source)

    @classmethod
    def read(cls, path: Path) -> PassTimes:
        return cls.from_dict(part_of_profile(path, "times"), str(path))


def part_of_profile(path: Path, name: str) -> dict[str, Any]:
    try:
        values = read_json(path)
    except OSError as error:
        raise ValueError(f"cannot read the profile {str(path)!r}: {error.strerror or error}") from None
    if not isinstance(values, dict) or not isinstance(values.get(name), dict):
        raise ValueError(f"{str(path)!r} is no profile: it has no {name!r}")
    return dict(values[name])


_LONGEST = 3.0
"""How many times as long as expected a step may take: the rest is an interruption by something else."""
_CHANGED, _PATIENCE = math.log(1.25), 4
"""How far steps must be off to time a pass over one token again, and after how many steps at the earliest."""
_STEP = 1.5
"""How much a single step counts at most as being off."""
_GUESSED = 100.0
"""How far the times of a busy machine may be off."""
_SEEN = 3
"""After so many steps, their times are believed and not the profile's."""


class StepTimes:
    """What steps take, in passes over one token.

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
        self._prior = 0 if profile.guessed else 1  # as how many steps the profile counts

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

    @property
    def slower(self) -> float:
        """How many times as long drafting takes as by the profile, beside a pass over one token."""
        return self._slower * self.profile.of(1)

    @property
    def guessed(self) -> bool:
        """Whether what drafting takes is known from a busy machine only."""
        return not self._prior and self._num_drafts < _SEEN

    @property
    def untimed(self) -> bool:
        return self.guessed and not self._num_drafts

    @property
    def num_timed(self) -> list[int]:
        """How often steps of 0, 1, ... proposals were timed, up to as often as it takes to believe them."""
        return [min(seen, _SEEN) for seen in self._seen]

    def resume(self, passes: Sequence[float], num_timed: Sequence[int], slower: float) -> None:
        """Begin with what was learnt before, on a machine that may be faster or slower now."""
        self.passes, self._before, self._seen = [*passes], [*passes], [*num_timed]
        self._slower, self._num_drafts = slower / self.plain, _SEEN

    def learn(self, num_proposed: int, expected: float, drafting: float, passing: float) -> float:
        """Learn from a step, and return what it took: what it usually takes, where that is known.

        So nobody pays for what interrupts a step. ``expected`` is what drafting should have taken, in passes over one
        token; the other two are seconds.
        """
        ratio = passing / self.plain / self.passes[num_proposed]
        if num_proposed == 0:
            self._learn_plain(_within(ratio, _LONGEST) if self.known else ratio)  # the profile may be by another clock
        elif self.known:
            off = math.log(_within(ratio, _STEP))  # one interruption is no change
            self._off, self._since = 0.7 * self._off + 0.3 * off, self._since + 1
            self.doubtful = abs(self._off) > _CHANGED and self._since >= _PATIENCE
            self.doubtful |= passing < 0.9 * self.plain  # more tokens do not take less time
        if num_proposed and self.known:
            self._correct(num_proposed, ratio)
        usual = self.passes[num_proposed]
        if (seen := self._seen[num_proposed]) < _SEEN:
            usual = max(usual, usual * self._limited(passing / self.plain / usual, seen))
        if expected and self.known:
            ratio = self._limited(drafting / self.plain / expected, self._num_drafts)
            self._num_drafts += 1
            self._slower *= ratio ** max(0.1, 1 / (self._prior + self._num_drafts))
            if self._num_drafts <= _SEEN:
                expected *= max(ratio, 1.0)
        return usual + expected

    def _limited(self, ratio: float, seen: int, most: float = _LONGEST) -> float:
        """Limit how far a step may be off, as the rest is an interruption; nothing says so where times are guesses."""
        return _within(ratio, _GUESSED if not self._prior and seen < _SEEN else most)

    def _learn_plain(self, ratio: float) -> None:
        """A pass over one token took so many times as long as before; it is believed where something had changed."""
        changed = abs(math.log(ratio)) > _CHANGED
        if self.doubtful or not self.known:
            if self.known and changed:  # other passes were misjudged meanwhile
                self.passes = [*self._before]
            self.plain *= ratio
            self.doubtful = False
        else:
            self.plain *= _within(ratio, _STEP) ** 0.3
            self.doubtful = changed
        self.known, self._off, self._since = True, 0.0, 0
        self._before = [*self.passes]

    def _correct(self, count: int, ratio: float) -> None:
        """Correct what so many proposals take, and with them those next to them that were never timed."""
        ratio = self._limited(ratio, self._seen[count], _STEP)
        self._seen[count] += 1
        ratio **= max(0.05, 1 / (self._prior + self._seen[count]))
        widths = self.profile.widths
        block = bisect_left(widths, count + 1)
        for other, seen in enumerate(self._seen):
            if other == count or (not seen and bisect_left(widths, other + 1) == block):
                self.passes[other] *= ratio


def _within(ratio: float, most: float) -> float:
    return min(max(ratio, 1 / most), most)
