"""What rules do, for Prometheus, and what responses have spent: counted on the device, so that no step waits for it."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cactus_decoding.core.counters import REPORTED, RuleCounters
from cactus_decoding.core.relaxed_logits import PositionCosts
from cactus_decoding.core.rules import Rule

_GOLDEN_RATIO = (math.sqrt(5) - 1) / 2


class DeviceCounters:
    """Sums by rule on the device; every so often they are read and added to Prometheus's counters."""

    def __init__(
        self, counters: RuleCounters, audit_fraction: float, device: torch.device, seconds: float | None = None
    ) -> None:
        # the audited part of positions, in [0, 1], is spread evenly and not drawn; ``seconds`` pass between readings,
        # which cost nothing on a CPU
        self._fraction, self._offered = audit_fraction, 0
        self._device, self._last = device, time.monotonic()
        self._seconds = seconds if seconds is not None else 0.0 if torch.device(device).type == "cpu" else 1.0
        self._counters, self._sums = counters, dict[str, Tensor]()

    def sample(self, positions: int) -> Tensor | None:
        if not self._fraction:
            return None
        # multiples of the golden ratio: every so many-th position would always be the same place within a step
        parts = np.arange(self._offered + 1, self._offered + positions + 1) * _GOLDEN_RATIO % 1
        self._offered += positions
        chosen = torch.from_numpy(np.flatnonzero(parts < self._fraction))
        if not len(chosen):
            return None
        if self._device.type == "cuda":
            chosen = chosen.pin_memory()  # so that nothing waits for the device
        return chosen.to(self._device, non_blocking=True)

    def add(
        self,
        rule: Rule,
        costs: PositionCosts,
        left: Tensor,
        sample: Tensor | None,
        protected: Tensor | None = None,
        fell_back: Tensor | None = None,
    ) -> None:
        """Count what one rule did in a step.

        ``left`` is positive at accepted positions, 0 at a rejected one that was looked at, negative at all others;
        ``protected`` and ``fell_back`` mark those looked at that a policy or a budget kept the rule away from.
        """
        visited, accepted = left >= 0, left > 0
        numbers = [
            visited.sum().double(),
            accepted.sum().double(),
            torch.where(accepted, costs.relaxed, 0.0).sum(),
            torch.where(visited, costs.conditional, 0.0).sum(),
        ]
        if sample is None:
            numbers += [numbers[0].new_zeros(())] * 2
        else:
            emitted = costs.emitted[sample]
            audited = visited[sample] & emitted.isfinite()
            numbers += [torch.where(audited, emitted, 0.0).sum(), audited.sum().double()]
        numbers += [
            numbers[0].new_zeros(()) if kept is None else kept.sum().double() for kept in (protected, fell_back)
        ]
        label, step = self._counters.label_of(rule), torch.stack(numbers)
        sums = self._sums.get(label)
        self._sums[label] = step if sums is None else sums + step
        if time.monotonic() - self._last >= self._seconds:
            self.flush()

    def flush(self) -> None:
        """Read the sums, which waits for the device, and add them to Prometheus's counters."""
        self._last = time.monotonic()
        for label, sums in self._sums.items():
            self._counters.add(label, sums.tolist())
        self._sums.clear()


class BudgetMeter:
    """What responses have spent and what became of their positions, on the device, so that no step waits for a number.

    A response keeps its slot when the engine takes it out of the batch for a while, as long as the engine passes the
    same object for it. One that comes back unknown counts as having spent everything, so that the budget holds. Its
    counts are then NaN.
    """

    def __init__(self, device: torch.device, slots: int) -> None:
        # nats of responses with a budget, ``[slots]``, and what those that ask for a report count, by `REPORTED`
        self.spent = torch.zeros(slots, dtype=torch.float64, device=device)
        self.counts = torch.zeros(slots, len(REPORTED), dtype=torch.float64, device=device)
        self._slots: OrderedDict[int, tuple[Any, int]] = OrderedDict()  # by identity, which holding the object secures

    def slot_of(self, response: Any, begun: bool, in_use: Callable[[], Collection[int | None]]) -> int:
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
        """Add what a step spent, position after position as `afforded` does, so that both round the same."""
        for cost in torch.where(visited, costs, 0.0).unbind(1):
            self.spent.index_add_(0, slots, cost)
