"""The patches of vLLM's V2 model runner: the same step as for V1, with each request's data kept on the device.

The host does not know the order of a step's rows there, so each rule in the batch gets all rows, and those of its
requests are selected on the device. Row i holds the logits after the drafted token ``draft_sampled[i + 1]``.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from cactus_decoding.core.policy.phases import Phases
from cactus_decoding.core.policy.vocabulary import Vocabulary
from cactus_decoding.core.rules.base import Rule
from cactus_decoding.engines.vllm.counters import DeviceCounters
from cactus_decoding.engines.vllm.extra_args import ServerConfig, server_vocabulary
from cactus_decoding.engines.vllm.patches import replace
from cactus_decoding.engines.vllm.reports import install_worker
from cactus_decoding.engines.vllm.state import FollowedResponse, RelaxedRequest, RequestRules, counters_of
from cactus_decoding.engines.vllm.step import MAX_ELEMENTS, Group, Layout, Protected, RelaxedStep

NO_RULE = -1
_NEVER = 1 << 62


def install() -> None:
    from vllm.v1.worker.gpu.sample import logits_processor

    replace(logits_processor, "build_custom_logits_processors", with_slot_rules)


def with_slot_rules(stock: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    """Add our state to vLLM's logits processors, and patch the sampler that looks for it."""

    def build(vllm_config: Any, req_states: Any, *args: Any, **kwargs: Any) -> list[Any]:
        processors = stock(vllm_config, req_states, *args, **kwargs)
        config = ServerConfig.of(vllm_config)
        if not config.speculates:
            return processors
        from vllm.v1.worker.gpu.spec_decode import rejection_sampler

        replace(rejection_sampler, "rejection_sample", with_relaxation)
        install_worker()
        counters, vocabulary = counters_of(config, req_states.device), server_vocabulary(vllm_config)
        return [*processors, SlotRules(config, req_states, counters, vocabulary)]

    return build


class SlotRules(RequestRules):
    """The rules of the requests by the runner's slots; vLLM updates it as a logits processor."""

    def __init__(
        self,
        config: ServerConfig,
        states: Any,
        counters: DeviceCounters | None = None,
        vocabulary: Vocabulary | None = None,
    ) -> None:
        super().__init__(config, states.device, states.max_num_reqs, counters, vocabulary)
        slots, device = states.max_num_reqs, states.device
        self.codes = torch.full((slots,), NO_RULE, dtype=torch.int64, device=device)
        self.budgets = torch.full((slots,), math.inf, dtype=torch.float64, device=device)
        self.meter_slots = torch.zeros(slots, dtype=torch.int64, device=device)
        self.patterns = torch.full((slots,), NO_RULE, dtype=torch.int64, device=device)
        self.thresholds = torch.full((slots,), math.inf, dtype=torch.float64, device=device)
        self.reporting = torch.zeros(slots, dtype=torch.bool, device=device)
        # the first position of the text, prompt included, where the rule may judge
        self.relaxed_from = torch.zeros(slots, dtype=torch.int64, device=device)
        self.present: dict[int, RelaxedRequest] = {}  # the requests of this step that have a rule, by slot
        self._states = states
        self._codes: dict[Rule, int] = {}
        self._patterns: dict[str | None, int] = {None: NO_RULE}

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        """Store a request's rule, budget and policy; return whether it has a rule."""
        self.requests.pop(req_idx, None)
        prompt_length = int(self._states.prompt_len.np[req_idx])
        begun = int(self._states.prefill_len.np[req_idx]) > prompt_length  # it was taken out and is back
        request = self.admit(sampling_params, begun)
        if request is None:
            self.codes[req_idx], self.budgets[req_idx], self.reporting[req_idx] = NO_RULE, math.inf, False
            return False
        phases = request.phases or Phases()
        if phases.relax_within is not None:
            marked = FollowedResponse(Phases(0, phases.relax_within), self.vocabulary, (), [])
            request = dataclasses.replace(request, response=marked)
        self.requests[req_idx] = request
        code = self._codes.setdefault(request.rule, len(self._codes))
        self.codes[req_idx], self.budgets[req_idx] = code, request.budget
        self.meter_slots[req_idx], self.reporting[req_idx] = request.meter_slot or 0, request.reports
        self.patterns[req_idx] = self._patterns.setdefault(request.pattern, len(self._patterns))
        self.thresholds[req_idx] = request.threshold
        self.relaxed_from[req_idx] = min(prompt_length + phases.lossless_tokens, _NEVER)
        return True

    def apply_staged_writes(self) -> None:
        """Do nothing: `add_request` has written everything."""

    def apply(self, logits: Tensor, ctx: Any) -> Tensor:
        """Note which rules this step's requests have, and return the logits as they are."""
        global _current
        slots = ctx.idx_mapping_np.tolist()
        self.present = {slot: self.requests[slot] for slot in slots if slot in self.requests}
        _current = self
        return logits

    def layout(
        self, slots: Tensor, local_pos: Tensor, pos: Tensor, token_ids: Tensor, num_speculative_tokens: int
    ) -> Layout:
        codes, rows = self.codes[slots], torch.arange(len(slots), device=slots.device)
        present = self.present.values()
        rules = dict.fromkeys(request.rule for request in present)
        metered = any(math.isfinite(request.budget) for request in present)
        patterns = dict.fromkeys(request.pattern for request in present if request.pattern is not None)
        return Layout(
            groups=[Group(rule, rows, codes == self._codes[rule]) for rule in rules],
            requests=slots,
            depths=local_pos,
            width=num_speculative_tokens + 1,
            budgets=self.budgets if metered else None,
            meter_slots=self.meter_slots,
            protected=[
                Protected(rows, self.protected_ids[pattern], self._thresholds(pattern, slots)) for pattern in patterns
            ],
            relaxable=self._relaxable(slots, pos, token_ids),
            reporting=self.reporting if any(request.reports for request in present) else None,
        )

    def _thresholds(self, pattern: str, slots: Tensor) -> Tensor:
        return torch.where(self.patterns[slots] == self._patterns[pattern], self.thresholds[slots], math.inf)

    def _relaxable(self, slots: Tensor, pos: Tensor, token_ids: Tensor) -> Tensor | None:
        """Return which rows phases let a rule judge, ``[rows]``; all, if None."""
        if not any(request.phases is not None for request in self.present.values()):
            return None
        relaxable = pos.long() + 1 >= self.relaxed_from[slots]
        if any(request.response is not None for request in self.present.values()):
            relaxable &= self._within_marks(slots.tolist(), token_ids.tolist()).to(slots.device)
        return relaxable

    def _within_marks(self, slots: list[int], token_ids: list[int]) -> Tensor:
        """Return which rows the text before them lets a rule judge, ``[rows]``; this reads new text off the device."""
        within = torch.ones(len(slots), dtype=torch.bool)
        lengths = self._states.total_len.gpu.tolist()
        for slot, request in self.present.items():
            if request.response is None:
                continue
            text = request.response.output_ids
            text += self._states.all_token_ids.gpu[slot, len(text) : lengths[slot]].tolist()
            own = [row for row, one in enumerate(slots) if one == slot]
            within[own] = torch.tensor(request.response.relaxable([token_ids[row] for row in own]))
        return within


_current: SlotRules | None = None
"""The state whose `apply` ran last: vLLM calls the sampler next, and does not pass it the processors."""


def take() -> SlotRules | None:
    """Return the state of the step that is being sampled, once: the next step without a rule does not call `apply`."""
    global _current
    taken, _current = _current, None
    return taken


@dataclass(frozen=True, eq=False)
class DraftLogits:
    logits: Tensor  # ``[slots, num_speculative_tokens, vocabulary]``
    width: int  # of the shorter vocabulary, which is what the sampler looks at
    slots: Tensor  # of each row's request, ``[rows]``
    local_pos: Tensor  # each row's place among those of its request, ``[rows]``
    drafted: Tensor  # whether a row verifies a drafted token, ``[rows]``
    temperature: Tensor  # ``[slots]``

    def rows(self, some: Tensor) -> Tensor:
        """Return the probabilities of some rows in float64; uniform where a row verifies no drafted token."""
        slots, position = self.slots[some], self.local_pos[some].clamp(max=self.logits.shape[1] - 1)
        temperature = self.temperature[slots].double()
        scaled = self.logits[slots, position, : self.width].double()
        scaled = scaled / torch.where(temperature > 0, temperature, 1.0).unsqueeze(1)
        return torch.where(self.drafted[some].unsqueeze(1), scaled.softmax(-1), 1 / self.width)

    def of_tokens(self, some: Tensor, token_ids: Tensor) -> Tensor:
        size = max(1, MAX_ELEMENTS // self.width)
        parts = zip(some.split(size), token_ids.unsqueeze(1).split(size), strict=True)
        return torch.cat([self.rows(rows).gather(1, tokens).squeeze(1) for rows, tokens in parts])


def with_relaxation(stock: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., tuple[Tensor, Tensor]]:
    """Relax the rows of requests with a rule; without any, sampling is unchanged."""

    def rejection_sample(
        target_logits: Tensor,
        draft_logits: Tensor | None,
        draft_sampled: Tensor,
        cu_num_logits: Tensor,
        pos: Tensor,
        idx_mapping: Tensor,
        expanded_idx_mapping: Tensor,
        expanded_local_pos: Tensor,
        temperature: Tensor,
        seed: Tensor,
        num_speculative_steps: int,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor]:
        sample = partial(
            stock, target_logits, draft_logits, draft_sampled, cu_num_logits, pos, idx_mapping, expanded_idx_mapping,
            expanded_local_pos, temperature, seed, num_speculative_steps, *args, **kwargs,
        )  # fmt: skip
        rules = take()
        if rules is None or not rules.present:
            return sample()
        slots, local_pos = expanded_idx_mapping.long(), expanded_local_pos.long()
        token_ids = drafted_tokens(draft_sampled, slots)
        draft = None
        if draft_logits is not None:
            width = min(target_logits.shape[-1], draft_logits.shape[-1])
            draft = DraftLogits(draft_logits, width, slots, local_pos, token_ids >= 0, temperature)
        layout = rules.layout(slots, local_pos, pos, token_ids, num_speculative_steps)
        if not layout.groups:
            return sample()
        step = RelaxedStep(layout, rules.meter, rules.counters, target_logits, token_ids, draft)
        with step.relaxed_logits():
            sampled, num_sampled = sample()
        step.settle(torch.zeros_like(rules.codes).index_copy_(0, idx_mapping.long(), num_sampled.long()))
        return sampled, num_sampled

    return rejection_sample


def drafted_tokens(draft_sampled: Tensor, slots: Tensor) -> Tensor:
    """Return the drafted token that each row verifies, the one fed in at the next row; negative where there is none.

    Example:
        >>> drafted_tokens(torch.tensor([0, 7, 5, 0, 9]), torch.tensor([4, 4, 4, 1, 1]))
        tensor([ 7,  5, -1,  9, -1])
    """
    token_ids = pad(draft_sampled[1:].long(), (0, 1), value=-1)
    return torch.where(pad(slots[1:] == slots[:-1], (0, 1), value=False), token_ids, -1)
