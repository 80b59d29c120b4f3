"""What steps teach: how long they take, and how often proposals are kept; and the file that hands it on."""

from __future__ import annotations

import atexit
import json
import math
import time
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from cactus_decoding.core.drafting.lengths import Rates
from cactus_decoding.core.drafting.suffix_index import Match
from cactus_decoding.core.drafting.timing import PassTimes, StepTimes
from cactus_decoding.core.files.jsonl import STRICT, read_as, read_json
from cactus_decoding.core.files.writing import as_json, write_atomically

STAKE = 3.0
"""How much time may be lost before anything was gained, in passes over one token."""


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
        self._earlier = None if earlier is None else earlier.rates
        self.rates: Rates = Rates(self._earlier or _COPIED, 4, _LONG_MEMORY if earlier is None else _MEMORY)

    def learn(self, match: Match, token_ids: Sequence[int]) -> None:
        for support, one, other in zip(match.support, match.token_ids, token_ids, strict=False):
            kind = bisect_right(_SUPPORT, support)
            self.rates.learn(kind, one == other)
            if self._earlier is not None:
                self._earlier.learn(kind, one == other)
            if one != other:
                break

    def tokens(self, match: Match) -> list[float]:
        """Return how many tokens a step is expected to bring with 0, 1, ... of the tokens after a match."""
        chance, expected = 1.0, [1.0]
        for support in match.support:
            chance *= self.rates[bisect_right(_SUPPORT, support)]
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
        self.rates: Rates = Rates(_DRAFTED if earlier is None else earlier.rates, 8, self._memory)
        self.rows = [_ROWS * share for share in (_SHARES if earlier is None else earlier.shares)]

    @property
    def shares(self) -> list[float]:
        """How many of the rows are of each kind."""
        total = sum(self.rows)
        return [each / total for each in self.rows]

    def of(self, confidence: float) -> float:
        """Return how likely a token is kept that was drawn from a row whose likeliest token has this probability."""
        return self.rates[bisect_right(_SURE, confidence)]

    def learn(self, confidences: Sequence[float], num_drafted: int, num_accepted: int) -> None:
        """Learn from a step whose last row may have been discarded; after a rejection rows are of another text."""
        for i, each in enumerate(confidences[: num_accepted + 1]):
            kind = bisect_right(_SURE, each)
            self.rows = [self._memory * rows for rows in self.rows]
            self.rows[kind] += 1
            if i < num_drafted:
                self.rates.learn(kind, i < num_accepted)
        if self._earlier is not None:
            self._earlier.learn(confidences, num_drafted, num_accepted)

    def worth(
        self, rate: float, draft: float, passes: Sequence[float], depth: int, begin: int = 0, chance: float = 1.0
    ) -> float:
        r"""Return what it is worth to draft on, in tokens, from ``begin`` tokens to ``depth`` of them at most.

        ``chance`` is that of all tokens so far being kept, ``rate`` how many tokens a pass over one is worth, ``draft``
        what a draft's pass takes, and ``passes`` what the target takes for 0, 1, ... proposals. A plan says how many
        rows to ask for, after which kinds of them to go on, and which tokens to leave out. With :math:`s_i` the share
        of rows of a kind, and :math:`a_i` how often their tokens are kept, it goes on with probability
        :math:`G = \sum s_i`, and does so after a token that is kept with :math:`H = \sum s_i a_i`, over the kinds after
        which it goes on. With P and A the same sums over those whose tokens it proposes, :math:`v_n` what verification
        takes longer for the next token, r the rate, c the chance and d a draft's pass, the best plan is worth

        .. math:: \max \sum_{j = 0}^{m - 1} c H^j A - r G^j (d + P v_{n + j}).

        A draft's passes take their time whether or not the tokens before them are kept.
        """
        kinds = [*zip(self.shares, self.rates, strict=True)][::-1]  # the surest first
        longer = [rate * (passes[n + 1] - passes[n]) for n in range(begin, depth)]
        usual = sum(longer) / len(longer)
        plans, proposed, kept = [(0.0, 0.0)], 0.0, 0.0
        for share, rated in kinds:
            if chance * rated >= usual:
                proposed, kept = proposed + share, kept + share * rated
                plans.append((proposed, kept))
        best, taken = -math.inf, [rate * draft + proposed * each for each in longer]
        for goes_on, holds in plans:
            worth, reached, held = 0.0, 1.0, chance * kept
            for each in taken:
                worth += held - reached * each
                if worth > best:  # faster than `max`, in each pass of a draft
                    best = worth
                reached *= goes_on
                held *= holds
        return best


class Rate:
    """Tokens in the time of a pass over one, lately."""

    def __init__(self, memory: float, earlier: Rate | None = None, passes: float = 0.0) -> None:
        """Begin as ``earlier``, which counts as so many passes at most."""
        self._memory = memory
        self.passes: float = 0.0 if earlier is None else min(passes, earlier.passes)
        self.tokens = 0.0 if earlier is None else float(earlier) * self.passes

    def __float__(self) -> float:
        """At least that of plain sampling."""
        return max(1.0, self.tokens / self.passes if self.passes else 0.0)

    def learn(self, tokens: int, passes: float) -> None:
        self.tokens = self._memory * self.tokens + tokens
        self.passes = self._memory * self.passes + passes


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
        self.rate = Rate(_LONG_MEMORY)

    @property
    def stake(self) -> float:
        """How much time the next response may lose before it has gained anything."""
        return min(STAKE, max(self.balance, _LEAST))


EVERY = 30.0
"""Seconds between two writings of a file at least."""

Share = Annotated[float, Field(ge=0, le=1)]
Weight = Annotated[float, Field(ge=0, le=1e6)]
Factor = Annotated[float, Field(ge=1e-3, le=1e3)]
Rated = tuple[Share, Annotated[float, Field(ge=1e-3, le=1e6)]]


@dataclass(frozen=True)
class Learned:
    """An `Experience` as plain numbers, rounded; times are in passes over one token."""

    __pydantic_config__ = STRICT

    profile: dict[str, Any]  # by which it began
    copied: list[Rated]
    drafted: list[Rated]
    rows: list[Weight]
    rate: tuple[Weight, Weight]
    passes: list[Factor]
    num_timed: list[Annotated[int, Field(ge=0, le=100)]]
    slower: Factor
    balance: Annotated[float, Field(ge=-1e6, le=1e6)]
    tried: bool

    @classmethod
    def of(cls, experience: Experience) -> Learned:
        times, rate, drafts = experience.times, experience.rate, experience.drafts
        return cls(
            json.loads(as_json(times.profile.as_dict())),
            [(_rounded(kept), _rounded(seen)) for kept, seen in experience.copies.rates.weighted],
            [(_rounded(kept), _rounded(seen)) for kept, seen in drafts.rates.weighted],
            [*map(_rounded, drafts.rows)],
            (_rounded(rate.tokens), _rounded(rate.passes)),
            [*map(_rounded, times.passes)],
            times.num_timed,
            _rounded(times.slower),
            _rounded(experience.balance),
            experience.tried,
        )

    @classmethod
    def read(cls, path: Path) -> Learned:
        """Raise `OSError` or `ValueError` where there is none."""
        values = read_json(path)
        if not isinstance(values, dict):
            raise ValueError(f"{path} holds no object")
        return read_as(cls, values, path)

    def given_to(self, fresh: Experience) -> Experience:
        """Return an experience that goes on from here; raise `ValueError` where this is of other times or lengths."""
        own = Learned.of(fresh)
        names = "copied", "drafted", "rows", "passes", "num_timed"
        alike = [len(getattr(self, name)) == len(getattr(own, name)) for name in names]
        if self.profile != own.profile or not all(alike):
            raise ValueError("this was learnt beside other times")
        fresh.copies.rates.weighted, fresh.drafts.rates.weighted = self.copied, self.drafted
        fresh.drafts.rows = [*self.rows] if sum(self.rows) else fresh.drafts.rows
        fresh.rate.tokens, fresh.rate.passes = self.rate
        fresh.times.resume(self.passes, self.num_timed, self.slower)
        fresh.balance, fresh.tried = self.balance, self.tried
        return fresh


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


EXPERIENCES: dict[tuple[str, int], Experience] = {}
"""What this process has learnt, by the profile's file and the longest proposal."""
_WRITTEN: dict[Path, tuple[Learned | None, float]] = {}
"""What files were last known to hold, and since when."""


def experience_of(profile: Path, times: PassTimes, max_draft_tokens: int, *, kept: bool) -> Experience:
    """Return what responses have learnt with these times; ``kept`` says whether other processes are to share it.

    A file that is damaged, or was learnt beside other times, counts as none.
    """
    key = str(profile), max_draft_tokens
    experience = EXPERIENCES.get(key)
    if experience is not None and experience.times.profile == times:
        if kept:
            _write(_file(*key), experience, every=EVERY)
        return experience
    experience = EXPERIENCES[key] = Experience(times, max_draft_tokens)
    if kept:
        path = _file(*key)
        with suppress(OSError, ValueError):
            Learned.read(path).given_to(experience)
        _WRITTEN[path] = Learned.of(experience), time.monotonic()
    return experience


def _file(profile: str, max_draft_tokens: int) -> Path:
    path = Path(profile)
    return path.parent.with_name("learned") / f"{path.stem}-{max_draft_tokens}.json"


def _write(path: Path, experience: Experience, every: float = 0.0) -> None:
    """Write a file if there is something new, and the last time was long ago; it does not matter if that fails."""
    before, since = _WRITTEN.get(path, (None, -math.inf))
    if time.monotonic() - since < every or (now := Learned.of(experience)) == before:
        return
    with suppress(OSError, ValueError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, as_json(asdict(now)) + "\n")
    _WRITTEN[path] = now, time.monotonic()


@atexit.register
def write_all() -> None:
    """Write what was learnt since each file was written."""
    for key, experience in EXPERIENCES.items():
        if (path := _file(*key)) in _WRITTEN:
            _write(path, experience)
