"""Budgets per response: what each has spent, and which positions the rest allows."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor


class BudgetMeter:
    """Nats spent by each response that has a budget, on the device, so that a step need not wait for a number.

    A response keeps its slot when vLLM takes it out of the batch for a while, as long as vLLM passes the same object of
    sampling parameters. One that comes back unknown counts as having spent everything: the budget holds all the same.

    Args:
        device: of the logits.
        slots: how many responses are remembered.
    """

    def __init__(self, device: torch.device, slots: int) -> None:
        """Remember nobody yet."""
        self.spent = torch.zeros(slots, dtype=torch.float64, device=device)
        self._slots: OrderedDict[int, tuple[Any, int]] = OrderedDict()  # by identity, which holding the object secures

    def slot_of(
        self, params: Any, budget: float, started: bool, in_use: Callable[[], Collection[int | None]]
    ) -> int | None:
        """Return the slot of a response, a new one where it is not known; None for an infinite budget.

        Args:
            params: the object that identifies the response.
            budget: in nats.
            started: whether it already has tokens.
            in_use: tells the slots of responses in the batch; others are reused, the longest unused one first.
        """
        if math.isinf(budget):
            return None
        if (known := self._slots.get(id(params))) is not None:
            self._slots.move_to_end(id(params))
            return known[1]
        slot = len(self._slots)
        if slot == len(self.spent):
            kept = in_use()
            oldest = next(key for key, (_, taken) in self._slots.items() if taken not in kept)
            slot = self._slots.pop(oldest)[1]
        self._slots[id(params)] = params, slot
        self.spent[slot] = math.inf if started else 0.0
        return slot


def allowed_positions(costs: Tensor, spent: Tensor, budgets: Tensor) -> Tensor:
    """Return which positions the budgets pay for, one after the other: true while the sum stays within.

    Args:
        costs: nats of each position if it is relaxed, ``[requests, num_speculative_tokens]``.
        spent: nats before this step, ``[requests]``.
        budgets: in nats, ``[requests]``.

    Example:
        >>> one = torch.tensor([1.0])
        >>> allowed_positions(torch.tensor([[0.25, 0.5, 0.5]]), 0.25 * one, one)
        tensor([[ True,  True, False]])
    """
    return spent.unsqueeze(1) + costs.cumsum(1) <= budgets.unsqueeze(1)


def nats_of_visited(costs: Tensor, allowed: Tensor, num_visited: Tensor) -> Tensor:
    """Return what a step spent, ``[requests]``: the allowed positions among those that were looked at.

    Args:
        costs: as above; zero where a request has no position.
        allowed: as above.
        num_visited: accepted positions and the first rejected one, ``[requests]``.

    Example:
        >>> costs = torch.tensor([[0.25, 0.5, 0.5]])
        >>> nats_of_visited(costs, costs < 1, torch.tensor([2]))
        tensor([0.7500])
    """
    visited = torch.arange(costs.shape[1], device=costs.device) < num_visited.unsqueeze(1)
    return torch.where(visited & allowed, costs, 0.0).sum(1)
