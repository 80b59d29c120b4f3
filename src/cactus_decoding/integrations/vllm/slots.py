"""Which request of vLLM's V2 runner follows which rule, by the runner's slots."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from cactus_decoding.integrations.vllm.counters import Counters
from cactus_decoding.integrations.vllm.meter import BudgetMeter
from cactus_decoding.integrations.vllm.request import Relaxation, admitted
from cactus_decoding.rules.base import Rule

NO_RULE = -1


class SlotRules:
    """The rules and budgets of the requests; vLLM keeps it up to date as one of its logits processors.

    Args:
        default: what a request gets that asks for nothing.
        device: of the logits.
        max_num_requests: number of slots.
        begun: says of a slot whether its request already has tokens when it is added: it was taken out and is back.
        counters: what to count, or None.

    Attributes:
        codes: of each slot's rule, ``[slots]``; `NO_RULE` without one.
        budgets: in nats, infinite without one, ``[slots]``.
        places: where the meter keeps what a slot's request has spent, ``[slots]``.
        present: the rules of this step's requests.
        metered: whether one of them has a budget.
    """

    def __init__(
        self,
        default: Relaxation | None,
        device: torch.device,
        max_num_requests: int,
        begun: Callable[[int], bool] = lambda slot: False,
        counters: Counters | None = None,
    ) -> None:
        """Begin with empty slots."""
        self.codes = torch.full((max_num_requests,), NO_RULE, dtype=torch.int64, device=device)
        self.budgets = torch.full((max_num_requests,), math.inf, dtype=torch.float64, device=device)
        self.places = torch.zeros(max_num_requests, dtype=torch.int64, device=device)
        self.meter = BudgetMeter(device, slots=8 * max_num_requests)
        self.counters = counters if counters is not None and counters.enabled else None
        self.present: set[Rule] = set()
        self.metered = False
        self._default, self._begun = default, begun
        self._by_slot: dict[int, tuple[Rule, int | None]] = {}
        self._known: dict[Rule, int] = {}

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        """Take note of a request's rule and budget; say whether it has a rule."""
        asked = admitted(sampling_params, self._default)
        self._by_slot.pop(req_idx, None)
        if asked is None:
            self.codes[req_idx], self.budgets[req_idx] = NO_RULE, math.inf
            return False
        place = self.meter.slot_of(sampling_params, asked.budget, self._begun(req_idx), self._places_in_use)
        self._by_slot[req_idx] = asked.rule, place
        self.codes[req_idx], self.budgets[req_idx] = self.code(asked.rule), asked.budget
        self.places[req_idx] = place or 0
        return True

    def code(self, rule: Rule) -> int:
        """Return the number that stands for a rule on the device."""
        return self._known.setdefault(rule, len(self._known))

    def _places_in_use(self) -> set[int | None]:
        return {place for _, place in self._by_slot.values()}

    def apply_staged_writes(self) -> None:
        """Do nothing: what concerns a slot is written when its request is added."""

    def apply(self, logits: Tensor, ctx: Any) -> Tensor:
        """Note which rules this step's requests have, and return the logits as they are."""
        global _current
        here = [self._by_slot[slot] for slot in ctx.idx_mapping_np.tolist() if slot in self._by_slot]
        self.present = {rule for rule, _ in here}
        self.metered = any(place is not None for _, place in here)
        _current = self
        return logits


_current: SlotRules | None = None
"""Whose `apply` ran last: vLLM calls the sampler next, and does not hand it the processors. Which rows are relaxed does
not depend on it, for the slots say that."""


def take() -> SlotRules | None:
    """Return the state of the step that is being sampled, once: the next step without a rule does not call `apply`."""
    global _current
    taken, _current = _current, None
    return taken
