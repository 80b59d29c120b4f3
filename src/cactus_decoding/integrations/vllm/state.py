"""Which request of vLLM's batch follows which rule, and which rows of a step are therefore relaxed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from cactus_decoding.integrations.vllm.counters import Counters
from cactus_decoding.integrations.vllm.meter import BudgetMeter
from cactus_decoding.integrations.vllm.request import Relaxation, admitted
from cactus_decoding.rules.base import Rule


@dataclass(frozen=True, eq=False)
class RelaxedRequest:
    """A request in the batch that is not verified losslessly.

    Attributes:
        relaxation: what it asks for.
        slot: where the meter keeps its nats; None without a budget.
    """

    relaxation: Relaxation
    slot: int | None


@dataclass(frozen=True, eq=False)
class Layout:
    """Where one step's relaxed positions are.

    Attributes:
        groups: each rule with the rows of its positions, ``[positions]`` on the device.
        requests: the batch index of each position's request, in the order of the groups, ``[all positions]``.
        depths: how many drafted tokens of the request precede each position, ``[all positions]``.
        metered: batch index, meter slot and budget of the requests that have one, ``[requests]`` each.
        places: their positions as indices into the order of the groups, ``[requests, num_speculative_tokens]``; one
            past the end where a request has fewer.
    """

    groups: list[tuple[Rule, Tensor]]
    requests: Tensor
    depths: Tensor
    metered: tuple[Tensor, Tensor, Tensor] | None
    places: Tensor


class BatchRules:
    """The rules of the requests in the V1 runner's batch; vLLM keeps it up to date as one of its logits processors.

    Args:
        default: what a request gets that asks for nothing.
        device: of the logits.
        to_device: how a list of numbers gets there, without waiting for the device.
        max_num_requests: the largest batch.
        counters: what to count, or None.
    """

    def __init__(
        self,
        default: Relaxation | None,
        device: torch.device,
        to_device: Callable[..., Tensor],
        max_num_requests: int,
        counters: Counters | None = None,
    ) -> None:
        """Begin with an empty batch."""
        self.default = default
        self.counters = counters
        self.requests: dict[int, RelaxedRequest] = {}
        self.meter = BudgetMeter(device, slots=8 * max_num_requests)
        self._device, self._to_device = device, to_device
        self._layout: tuple[tuple[int, ...], Layout] | None = None

    def is_argmax_invariant(self) -> bool:
        """Say that no logits are changed (here)."""
        return True

    def apply(self, logits: Tensor) -> Tensor:
        """Return the logits as they are: they are needed unrelaxed for tokens that nobody drafted."""
        return logits

    def update_state(self, batch_update: Any) -> None:
        """Follow the requests that vLLM adds to, removes from and moves within its batch."""
        from vllm.v1.sample.logits_processor.builtin import process_dict_updates

        if process_dict_updates(self.requests, batch_update, self.admit):
            self._layout = None

    def admit(self, params: Any, prompt_ids: list[int] | None, output_ids: Sequence[int]) -> RelaxedRequest | None:
        """Return a request's entry, or None where vLLM's own verification is all it needs."""
        asked = admitted(params, self.default)
        if asked is None:
            return None
        slot = self.meter.slot_of(params, asked.budget, len(output_ids) > 0, self._slots_in_use)
        return RelaxedRequest(asked, slot)

    def _slots_in_use(self) -> set[int | None]:
        return {entry.slot for entry in self.requests.values()}

    def layout(self, num_draft_tokens: Sequence[int], max_draft_tokens: int) -> Layout | None:
        """Return where the relaxed positions of a step are, or None where there are none."""
        if not self.requests:
            return None
        key = tuple(num_draft_tokens)
        if self._layout is None or self._layout[0] != key:
            self._layout = key, self._lay_out(key, max_draft_tokens)
        layout = self._layout[1]
        return layout if layout.groups else None

    def _lay_out(self, num_draft_tokens: tuple[int, ...], width: int) -> Layout:
        starts = [0, *accumulate(num_draft_tokens)]
        members: dict[Rule, list[int]] = {}
        for index, entry in sorted(self.requests.items()):
            if index < len(num_draft_tokens) and num_draft_tokens[index]:
                members.setdefault(entry.relaxation.rule, []).append(index)
        order = [index for indices in members.values() for index in indices]
        counts = [num_draft_tokens[index] for index in order]
        total = sum(counts)
        places, metered = [], []
        for index, count, begin in zip(order, counts, [0, *accumulate(counts)], strict=False):
            if (slot := self.requests[index].slot) is not None:
                metered.append((index, slot, self.requests[index].relaxation.budget))
                places.append([*range(begin, begin + count), *[total] * (width - count)])

        def integers(values: Any) -> Tensor:
            return self._to_device(values, self._device, torch.int64)

        def rows_of(indices: list[int]) -> list[int]:
            return [row for i in indices for row in range(starts[i], starts[i] + num_draft_tokens[i])]

        columns = list(zip(*metered, strict=True))
        return Layout(
            groups=[(rule, integers(rows_of(indices))) for rule, indices in members.items()],
            requests=integers([index for index, count in zip(order, counts, strict=True) for _ in range(count)]),
            depths=integers([depth for count in counts for depth in range(count)]),
            metered=(
                (integers(columns[0]), integers(columns[1]), self._to_device(columns[2], self._device, torch.float64))
                if metered
                else None
            ),
            places=integers(places),
        )
