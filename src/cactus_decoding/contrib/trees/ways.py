"""Which way of drafting emits the most tokens per second: tried, compared, and tried again from time to time."""

from __future__ import annotations

from dataclasses import dataclass

_FAST, _SLOW = 0.995, 0.998
"""The share of its weight that an observation keeps: of what steps promise and take, and of what promises are worth."""
_AT_FIRST = 8
"""Steps of each way before any is preferred."""
_DOUBT = 0.6
"""How far a mean of n steps may be off: this over the root of n, as a part of it."""
_CLOSE, _FAR = 8, 200
"""One step in so many goes to another way: where it may be the better one, and where it hardly can."""


@dataclass
class _Record:
    tried: int = 0
    steps: float = 0.0
    expected: float = 0.0
    seconds: float = 0.0
    emitted: float = 10.0  # as if some steps had kept their promise
    promised: float = 10.0
    last: int = 0

    @property
    def rate(self) -> float:
        """Tokens per second: what steps promised, which varies less than what they brought, put right by the latter."""
        return self.expected / self.seconds * self.emitted / self.promised if self.seconds else 0.0


class WayChooser:
    """Chooses one of several ways for each step.

    Args:
        names: of the ways; the first is preferred where two are as good.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self._records = {name: _Record() for name in names}
        self._step = 0

    def choose(self) -> str:
        """Return the way of the next step."""
        self._step += 1
        least = min(self._records, key=lambda name: self._records[name].tried)
        if self._records[least].tried < _AT_FIRST:
            return self._take(least)
        best = self.best
        for name, record in self._records.items():
            if name == best:
                continue
            may_win = record.rate * (1 + _DOUBT / record.steps**0.5) > self._records[best].rate
            if self._step - record.last >= (_CLOSE if may_win else _FAR):
                return self._take(name)
        return self._take(best)

    @property
    def best(self) -> str:
        """The way that has emitted the most tokens per second."""
        return max(self._records, key=lambda name: self._records[name].rate)

    def rate(self, name: str) -> float:
        """Return the tokens per second of a way; 0 while nothing is known."""
        return self._records[name].rate

    def learn(self, name: str, promised: float, emitted: int, seconds: float) -> None:
        """Hear how many tokens a step promised and brought, and what it took."""
        record = self._records[name]
        record.tried += 1
        record.steps = _FAST * record.steps + 1
        record.expected = _FAST * record.expected + promised
        record.seconds = _FAST * record.seconds + seconds
        record.promised = _SLOW * record.promised + promised
        record.emitted = _SLOW * record.emitted + emitted

    def _take(self, name: str) -> str:
        self._records[name].last = self._step
        return name
