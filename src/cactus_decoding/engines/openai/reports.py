"""What a response says of its own acceptance, where its request asks for that."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

REPORT_KEY = "acceptance_report"
"""Asks for a report in a request, and names it in a response."""
REPORTED = (
    "nats", "verified_positions", "accepted_tokens", "relaxed_tokens", "fell_back_positions", "protected_positions"
)  # fmt: skip
"""What is counted of a response that asks for it: nats as a budget charges them, and the rest as `counters` has it."""


def report_of(counts: Sequence[float] | None, drafted: Sequence[int], accepted: Sequence[int]) -> dict[str, Any]:
    """Return what a response says of its own acceptance; a number that nobody knows is None.

    Counts are by `REPORTED`, None for a request without a rule; proposals and those accepted are by position.

    Example:
        >>> report_of([0.5, 3, 2, 1.25, 0, 0], [2, 1], [1, 1])["relaxed_tokens"]
        1.25
        >>> report_of(None, [1], [1])["nats"]
        0.0
    """
    given = [0.0] * len(REPORTED) if counts is None else counts
    known = [number if math.isfinite(number) else None for number in given]
    integral = ("verified_positions", "accepted_tokens", "fell_back_positions", "protected_positions")
    report: dict[str, Any] = {
        name: int(number) if name in integral and number is not None else number
        for name, number in zip(REPORTED, known, strict=True)
    }
    return report | {"drafted_by_position": list(drafted), "accepted_by_position": list(accepted)}
