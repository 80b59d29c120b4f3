"""What a run counted; ratios are worked out only when they are read."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields

from cactus_decoding.core.types import Outcome


@dataclass
class Metrics:
    """Counts of a decoding run, with its nats and seconds. They add up: ``a + b`` describes both runs together.

    Attributes:
        steps: verifications, each one forward pass of the target.
        drafted: tokens proposed.
        accepted: drafted tokens that were kept.
        forced: accepted tokens that a constraint left no choice about, whoever proposed them.
        relaxed: accepted tokens that the lossless test, with the same uniform draw, would have rejected.
        recovered: tokens drawn after a rejection.
        bonus: tokens drawn from the target where all proposals were kept, or there were none.
        generated: tokens handed to the caller; what comes after a stop token counts above but not here.
        metered: verified positions whose cost a budget measured.
        nats: what they cost: KL to the target, or for ``relaxed_greedy`` the log-probability given up.
        fell_back: those among them where the budget could not afford the rule, and the lossless rule decided.
        protected: verified positions where a relaxation policy did not let the rule decide.
        seconds: wall time.

    Example:
        >>> Metrics(steps=2, drafted=8, accepted=5).acceptance_length
        3.5
    """

    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    forced: int = 0
    relaxed: int = 0
    recovered: int = 0
    bonus: int = 0
    generated: int = 0
    metered: int = 0
    nats: float = 0.0
    fell_back: int = 0
    protected: int = 0
    seconds: float = 0.0

    @classmethod
    def of(cls, outcome: Outcome) -> Metrics:
        """Return the counts of one step, without its seconds."""
        nats, all_accepted = outcome.nats, outcome.num_accepted == len(outcome.visits)
        return cls(
            steps=1,
            drafted=outcome.num_drafted,
            accepted=outcome.num_accepted,
            forced=outcome.num_forced,
            relaxed=outcome.num_relaxed,
            recovered=int(not all_accepted),
            bonus=int(all_accepted),
            generated=outcome.num_emitted,
            metered=len(nats),
            nats=sum(nats),
            fell_back=outcome.num_fell_back,
            protected=outcome.num_protected,
        )

    def __add__(self, other: Metrics) -> Metrics:
        return Metrics(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    @property
    def acceptance_length(self) -> float:
        """Tokens per verification, the recovered or bonus token included: 1 + accepted / steps."""
        return 1 + self.accepted_per_step

    @property
    def accepted_per_step(self) -> float:
        """Accepted drafted tokens per verification (what the Cactus paper calls AL)."""
        return _ratio(self.accepted, self.steps)

    @property
    def acceptance_rate(self) -> float:
        return _ratio(self.accepted, self.drafted)

    @property
    def nats_per_position(self) -> float:
        return _ratio(self.nats, self.metered)

    @property
    def tokens_per_second(self) -> float:
        return _ratio(self.generated, self.seconds)

    def as_dict(self) -> dict[str, float | None]:
        """Return counts and ratios, for JSON; a ratio over zero is None."""
        ratios = ("acceptance_length", "accepted_per_step", "acceptance_rate", "nats_per_position", "tokens_per_second")
        values = {name: getattr(self, name) for name in ratios}
        return asdict(self) | {name: None if math.isnan(value) else value for name, value in values.items()}


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else math.nan
