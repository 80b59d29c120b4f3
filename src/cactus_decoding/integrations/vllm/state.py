"""Which request of vLLM's batch follows which rule, and what its budget has left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from cactus_decoding.generation.request import Request
from cactus_decoding.integrations.common.counters import Counters
from cactus_decoding.integrations.common.meter import BudgetMeter
from cactus_decoding.integrations.vllm.request import ServerConfig, admitted, nats_of
from cactus_decoding.rules.base import Rule


@dataclass(frozen=True, eq=False)
class RelaxedRequest:
    """A request in the batch that is not verified losslessly.

    Attributes:
        rule: its acceptance rule.
        budget: in nats, infinite without one.
        meter_slot: where the meter keeps its nats; None without a budget.
    """

    rule: Rule
    budget: float
    meter_slot: int | None


class RequestRules:
    """The rules and budgets of the requests in a batch.

    Args:
        default: what a request gets that asks for nothing.
        device: of the logits.
        max_num_requests: the largest batch.
        counters: what to count, or None.

    Attributes:
        requests: by the runner's own index.
        meter, counters: of all of them.
    """

    def __init__(
        self, default: Request | None, device: torch.device, max_num_requests: int, counters: Counters | None = None
    ) -> None:
        self.requests: dict[int, RelaxedRequest] = {}
        self.meter = BudgetMeter(device, slots=8 * max_num_requests)
        self.counters = counters
        self.device = device
        self._default = default

    def admit(self, params: Any, begun: bool) -> RelaxedRequest | None:
        """Return a request's entry, or None where vLLM's own verification is all it needs.

        Args:
            params: vLLM's sampling parameters; the same object if the request was in the batch before.
            begun: whether it already has tokens.
        """
        asked = admitted(params, self._default)
        if asked is None:
            return None
        assert isinstance(asked.rule, Rule)  # as `request_of` parsed it
        budget = nats_of(asked)
        slot = self.meter.slot_of(params, budget, begun, self._slots_in_use)
        return RelaxedRequest(asked.rule, budget, slot)

    def _slots_in_use(self) -> set[int | None]:
        return {request.meter_slot for request in self.requests.values()}


def counters_of(config: ServerConfig, device: torch.device) -> Counters | None:
    """Return what this worker counts: nothing if the server says so, or another one of its group does."""
    from vllm.distributed import parallel_state

    if not config.metrics:
        return None
    if parallel_state.model_parallel_is_initialized() and parallel_state.get_tensor_model_parallel_rank() != 0:
        return None
    return Counters(config.audit_fraction, device)
