"""Meters that are off by one position: what they let through must be found."""

from __future__ import annotations

from support.decisions import charge


def forgets_the_rejected_position(state, costs, fell_back, num_accepted):
    """A wrong meter: charges the accepted positions only."""
    return charge(state, costs[:num_accepted], fell_back[:num_accepted], num_accepted)


def charges_late(state, costs, fell_back, num_accepted):
    """A wrong meter: charges each position with the cost of the one before it."""
    return charge(state, [0.0, *costs], [False, *fell_back], num_accepted)


def looks_at_the_past_only(costs: list[float], limit: float, spent: float = 0.0) -> list[bool]:
    """A wrong admission: asks whether anything is left, and not whether the next position fits."""
    admitted = []
    for cost in costs:
        admitted.append(spent < limit)
        spent += cost if admitted[-1] else 0.0
    return admitted
