"""What an answer cost, exactly, read from the outcomes of its steps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import groupby

from cactus_decoding.policy.position import Position
from cactus_decoding.rules import Lossless
from cactus_decoding.types import AcceptanceRule, Outcome, Visit, judges_untempered


@dataclass
class AuditedCosts:
    """Exact costs of the visited positions: the accepted ones and those of a first rejection.

    Whatever lies behind a rejection was never emitted, and a bonus token comes from the target itself. Where a budget
    fell back to the lossless rule, a position costs nothing. What a budget charged is taken as it was charged. The nats
    of `RelaxedGreedy` are the log-probability given up.

    Attributes:
        metered: positions so far.
        nats: sum of KL(output || target) over them.
        tv: sum of their total variations.
        max_log_ratio: the largest log-likelihood ratio among them, in nats; 0 before any.

    Example:
        >>> from cactus_decoding import load_pair, stream
        >>> from cactus_decoding.zoo.word_problems import EXAMPLES
        >>> costs = AuditedCosts()
        >>> for outcome in stream(load_pair(), EXAMPLES[0].prompt, rule="cactus:delta=1", seed=0):
        ...     costs.add(outcome)
        >>> 0 < costs.tv < costs.metered
        True
    """

    metered: int = 0
    nats: float = 0.0
    tv: float = 0.0
    max_log_ratio: float = 0.0

    def add(self, outcome: Outcome) -> None:
        """Add what a step's visited positions cost."""
        self.metered += len(outcome.visits)
        for rule, visits in groupby(outcome.visits, key=lambda visit: visit.rule):
            if not isinstance(rule, Lossless):
                self._add(rule, list(visits))

    def _add(self, rule: AcceptanceRule, visits: list[Visit]) -> None:
        """Add positions that one rule judged."""
        charged = [visit.nats for visit in visits if visit.nats is not None]
        if judges_untempered(rule):  # at temperature 0 another token is another distribution altogether
            nats, tv = charged, [float(cost > 0) for cost in charged]
            largest = [math.inf if moved else 0.0 for moved in tv]
        else:
            results = [Position(visit.rows, visit.rows.proposal.parents[visit.node]).audit(rule) for visit in visits]
            nats = charged or [max(each.kl.item(), 0.0) for each in results]  # rounding takes a KL of 0 below 0
            tv = [each.tv.item() for each in results]
            largest = [max(each.max_log_ratio.item(), 0.0) for each in results]
        for cost in nats:  # one by one, as they were charged: the same rounding
            self.nats += cost
        self.tv += sum(tv)
        self.max_log_ratio = max(self.max_log_ratio, *largest)
