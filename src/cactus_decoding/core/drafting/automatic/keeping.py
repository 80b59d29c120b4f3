"""What responses taught, kept in a file for later processes."""

from __future__ import annotations

import atexit
import json
import math
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from cactus_decoding.core.drafting.automatic.experience import Experience
from cactus_decoding.core.drafting.timing import PassTimes
from cactus_decoding.core.files.jsonl import STRICT, read_as, read_json
from cactus_decoding.core.files.writing import as_json, write_atomically

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
