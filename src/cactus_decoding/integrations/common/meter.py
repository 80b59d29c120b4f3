"""Budgets per response: what each has spent and what became of its positions, and which positions the rest allows."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor

REPORTED = (
    "nats", "verified_positions", "accepted_tokens", "relaxed_tokens", "fell_back_positions", "protected_positions"
)  # fmt: skip
"""What is counted of a response that asks for it: nats as a budget charges them, and the rest as `counters` has it."""


class BudgetMeter:
    """What responses have spent and what became of their positions, on the device, so that no step waits for a number.

    A response keeps its slot when the engine takes it out of the batch for a while, as long as the engine passes the
    same object for it. One that comes back unknown counts as having spent everything: the budget holds all the same.
    What was counted of it is then not a number.

    Args:
        device: of the logits.
        slots: how many responses are remembered.

    Attributes:
        spent: nats of responses with a budget, ``[slots]``.
        counts: of responses that ask for a report, by `REPORTED`, ``[slots, counts]``.
    """

    def __init__(self, device: torch.device, slots: int) -> None:
        self.spent = torch.zeros(slots, dtype=torch.float64, device=device)
        self.counts = torch.zeros(slots, len(REPORTED), dtype=torch.float64, device=device)
        self._slots: OrderedDict[int, tuple[Any, int]] = OrderedDict()  # by identity, which holding the object secures

    def slot_of(self, response: Any, begun: bool, in_use: Callable[[], Collection[int | None]]) -> int:
        """Return the slot of a response, a new one where it is not known.

        Args:
            response: the object that identifies it.
            begun: whether it already has tokens.
            in_use: tells the slots of responses in the batch; others are reused, the longest unused one first.
        """
        if (known := self._slots.get(id(response))) is not None:
            self._slots.move_to_end(id(response))
            return known[1]
        slot = len(self._slots)
        if slot == len(self.spent):
            kept = in_use()
            oldest = next(key for key, (_, taken) in self._slots.items() if taken not in kept)
            slot = self._slots.pop(oldest)[1]
        self._slots[id(response)] = response, slot
        self.spent[slot], self.counts[slot] = (math.inf, math.nan) if begun else (0.0, 0.0)
        return slot

    def charge(self, slots: Tensor, costs: Tensor, visited: Tensor) -> None:
        """Add what a step spent, position after position as `admitted` has it: the same rounding.

        Args:
            slots: of the requests, ``[requests]``; any slot for a request that costs nothing.
            costs: nats of their positions, ``[requests, positions]``.
            visited: which of those were admitted and then looked at, same shape.

        Example:
            >>> meter = BudgetMeter(torch.device("cpu"), slots=2)
            >>> costs = torch.tensor([[0.25, 0.5, 0.5]]).double()
            >>> meter.charge(torch.tensor([1]), costs, torch.tensor([[True, True, False]]))
            >>> meter.spent
            tensor([0.0000, 0.7500], dtype=torch.float64)
        """
        for cost in torch.where(visited, costs, 0.0).unbind(1):
            self.spent.index_add_(0, slots, cost)
