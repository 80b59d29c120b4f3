"""Rules that are strict while few requests share an engine, and loose where a rejected token costs others time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import cast

from cactus_decoding.arguments.checks import check_integer, check_number, shown
from cactus_decoding.policy.fitted import scaled
from cactus_decoding.rules.base import Rule


@dataclass(frozen=True)
class LoadRule:
    """Which share of its knob a request's rule has, by the number of requests in a step.

    The number is known before a step's tokens are drafted, and has nothing to do with which they are: what a rule, a
    budget or a policy guarantees holds of the scaled rule, and so of the request's own.

    Rows have the smallest and the largest number of requests, and the share in [0, 1]; they follow each other from 1
    on, and beyond the last one its share stays.

    Example:
        >>> from cactus_decoding import Cactus
        >>> load = LoadRule.parse([[1, 4, 0.0], [5, 16, 0.5]])
        >>> [str(load.rule(Cactus(delta=1.0), size)) for size in (4, 5, 99)]
        ['None', 'cactus:delta=0.5', 'cactus:delta=0.5']
    """

    rows: tuple[tuple[int, int, float], ...]

    @classmethod
    def parse(cls, given: object) -> LoadRule:
        """Return the table of plain lists."""
        if isinstance(given, str) or not isinstance(given, Sequence) or not given:
            raise TypeError(f"load_rule must be rows such as [[1, 4, 0.25], [5, 64, 1.0]], but is {shown(given)}")
        rows, expected = list[tuple[int, int, float]](), 1
        for row in given:
            if isinstance(row, str) or not isinstance(row, Sequence) or len(row) != 3:
                raise TypeError(f"a row of load_rule must be [smallest, largest, share], but is {shown(row)}")
            first, last, share = row
            check_integer("the smallest batch of a row of load_rule", first, 1)
            check_integer("the largest batch of a row of load_rule", last, 1)
            check_number("the share of a row of load_rule", share, 0, 1)
            if first != expected or last < first:
                raise ValueError(f"the rows of load_rule must follow each other: {shown(row)} must begin at {expected}")
            rows.append((first, last, float(share)))
            expected = last + 1
        return cls(tuple(rows))

    def share(self, batch_size: int) -> float:
        """Return the share for a step of so many requests."""
        return next((share for _, last, share in self.rows if batch_size <= last), self.rows[-1][2])

    def rule(self, rule: Rule, batch_size: int) -> Rule | None:
        """Return what judges a request's tokens in a step of so many requests; None for the lossless test."""
        share = self.share(batch_size)
        return _scaled(rule, share) if share > 0 else None


@lru_cache(maxsize=1024)
def _scaled(rule: Rule, share: float) -> Rule:
    return rule if share == 1 else cast(Rule, scaled(rule, share))
