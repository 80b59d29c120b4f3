"""How far a response's distribution may move from the target's."""

from __future__ import annotations

import math
from numbers import Real
from typing import Annotated

from cactus_decoding.core.checks import check_number, short_repr
from cactus_decoding.core.declared import Model, Setting


class Budget(Model):
    r"""How far the distribution of a whole response may move from the target's.

    A response that is decoded at a temperature above 0 with a budget of B nats has KL(distribution of the response ||
    the target's) <= B, whatever the rule, the draft and the prompt. So no event (a right answer, a refusal,
    a broken format) has its probability moved by more than

    .. math:: \min(\sqrt{B / 2},\ \sqrt{1 - e^{-B}})

    which are the bounds of Pinsker and of Bretagnolle and Huber. ``max_shift`` gives the budget by this consequence.
    Each verified position is charged its exact cost. Where the next position would overspend, it is judged by the
    lossless rule, which costs nothing. Proofs are in the documentation on guarantees. With the rules for temperature 0
    (``relaxed_greedy``, ``big_little``, ``mars``) ``nats`` limit the log-probability given up, and no event.

    Attributes:
        nats: the budget per response, 0 or more; infinity only measures. Give either this or ``max_shift``.
        max_shift: largest change of any event's probability, in [0, 1].
        expected_tokens: if given, the length over which the budget is spread, 1 or more: the clamped ratio's width is
            then moved so that the budget lasts. Only for rules ``clamped:width=...``, whose width is the first one.
        max_relaxed: at temperature 0, how many tokens of a step may be kept though they are not the likeliest.

    Raises:
        TypeError: for a value that is not a number.
        ValueError: if both or neither of ``nats`` and ``max_shift`` are given, or one is out of range.

    Sources: design of this project; Bretagnolle and Huber (1979) for the second bound.

    Example:
        >>> Budget(max_shift=0.1).limit
        0.020000000000000004
        >>> round(Budget(nats=0.02).shift, 12)
        0.1
    """

    nats: Annotated[
        float | None,
        Setting(
            "Limit on how far the distribution of a whole answer may move from the target's; infinity only "
            "measures. With relaxed_greedy: on the log-probability given up.",
            "nats",
            ge=0,
            flat="budget_nats",
            metavar="NATS",
            key="budget",
            from_clients=True,
        ),
    ] = None
    max_shift: Annotated[
        float | None,
        Setting("The same by its consequence: no event's probability moves by more.", ge=0, le=1, metavar="P"),
    ] = None
    expected_tokens: Annotated[
        int | None,
        Setting(
            "Spread the budget over this many tokens by moving the width; only for ``clamped:width``.", "tokens", ge=1
        ),
    ] = None
    max_relaxed: Annotated[int | None, Setting("At temperature 0: most relaxed tokens of a step.", "tokens", ge=0)] = (
        None
    )

    def model_post_init(self, context: object) -> None:
        if (self.nats is None) == (self.max_shift is None):
            given = f"nats is {short_repr(self.nats)} and max_shift is {short_repr(self.max_shift)}"
            raise ValueError(f"give either nats or max_shift, but {given}")
        for name in ("expected_tokens", "max_relaxed"):  # refuses integers that a float cannot hold
            if (value := getattr(self, name)) is not None:
                check_number(name, value, 0, math.inf, high_open=True)
        if self.expected_tokens is not None and math.isinf(self.limit):
            raise ValueError("expected_tokens spreads a finite budget, but the budget is infinite")

    @property
    def limit(self) -> float:
        """The budget in nats: for ``max_shift`` s the larger of 2 s^2 and -log(1 - s^2), as either bound suffices."""
        if self.nats is not None:
            return self.nats
        assert self.max_shift is not None
        square = self.max_shift**2
        return max(2 * square, -math.log1p(-square) if square < 1 else math.inf)

    @property
    def shift(self) -> float:
        """Largest change of any event's probability that the budget allows, in [0, 1]."""
        return min(math.sqrt(self.limit / 2), math.sqrt(-math.expm1(-self.limit)))


def as_budget(budget: Budget | float | None) -> Budget | None:
    if budget is None or isinstance(budget, Budget):
        return budget
    if isinstance(budget, bool) or not isinstance(budget, Real):
        raise TypeError(f"budget must be a Budget or a number of nats, but is {short_repr(budget)}")
    return Budget(nats=check_number("budget", budget, 0, math.inf))
