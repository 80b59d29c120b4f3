"""Which request of vLLM's batch follows which rule and where, and how much of its budget is left."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from cactus_decoding.core.counters import RuleCounters
from cactus_decoding.core.policy.phases import Phases
from cactus_decoding.core.policy.vocabulary import Vocabulary
from cactus_decoding.core.rules.base import Rule
from cactus_decoding.engines.vllm.counters import BudgetMeter, DeviceCounters
from cactus_decoding.engines.vllm.extra_args import (
    ServerConfig,
    asks_for_report,
    check_texts,
    nats_of,
    protected_tokens,
    worker_request,
)

logger = logging.getLogger("vllm.cactus_decoding")


def append_padding_token(vocabulary: Vocabulary | None) -> Vocabulary:
    """Append a token with an empty text, which stands for all tokens that the vocabulary does not know."""
    known = Vocabulary(()) if vocabulary is None else vocabulary
    return replace(known, texts=(*known.texts, ""))


class FollowedResponse:
    """Follow one response whose request asks for phases, token by token.

    The vocabulary comes from `append_padding_token`: unknown tokens are read as its last one. The engine appends to
    ``output_ids``, with negative numbers for tokens that it does not know yet; they are read again on every call.
    """

    def __init__(
        self, phases: Phases, vocabulary: Vocabulary, prompt_ids: Sequence[int], output_ids: list[int]
    ) -> None:
        self.output_ids = output_ids
        self._phases, self._vocabulary = phases, vocabulary
        self._begin = self._state = phases.begin(self._known(prompt_ids), vocabulary)
        self._num_read = 0

    @property
    def reads_tokens(self) -> bool:
        return self._phases.relax_within is not None

    @property
    def settled(self) -> bool:
        known = min(self._state.num_emitted, len(self.output_ids))
        return not self.reads_tokens and known >= self._phases.lossless_tokens

    def relaxable(self, draft_token_ids: Sequence[int]) -> list[bool]:
        """For each of the next drafted tokens, whether its position may be relaxed."""
        if len(self.output_ids) < self._num_read:  # the engine took tokens back
            self._state, self._num_read = self._begin, 0
        further = self.output_ids[self._num_read :]
        if min(further, default=0) < 0:
            return [False] * len(draft_token_ids)
        self._state = self._phases.after(self._state, self._known(further), self._vocabulary)
        self._num_read += len(further)
        return self._phases.relaxable(self._state, self._known(draft_token_ids), self._vocabulary)

    def _known(self, token_ids: Sequence[int]) -> Sequence[int]:
        if not self._phases.reads_text:
            return token_ids
        silence = len(self._vocabulary.texts) - 1
        return [token if 0 <= token < silence else silence for token in token_ids]


@dataclass(frozen=True, eq=False)
class RelaxedRequest:
    rule: Rule
    budget: float  # in nats; infinite without one
    meter_slot: int | None  # where the meter keeps its nats and counts; None without a budget or a report
    pattern: str | None  # of the tokens that it protects, a key of `RequestRules.protected_ids`
    threshold: float  # their largest probability where a position may be relaxed
    phases: Phases | None  # where in the response its rule may judge; None: everywhere
    reports: bool
    response: FollowedResponse | None = None  # its tokens, if phases ask for them


class RequestRules:
    def __init__(
        self,
        config: ServerConfig,
        device: torch.device,
        max_num_requests: int,
        counters: DeviceCounters | None = None,
        vocabulary: Vocabulary | None = None,
    ) -> None:
        self.requests: dict[int, RelaxedRequest] = {}
        self.meter = BudgetMeter(device, slots=8 * max_num_requests)
        self.counters = counters
        self.device = device
        self.vocabulary = append_padding_token(vocabulary)
        self.protected_ids: dict[str, Tensor] = {}  # by pattern, ``[tokens]`` on the device
        self._config, self._known = config, vocabulary

    def admit(self, params: Any, begun: bool) -> RelaxedRequest | None:
        asked = worker_request(params, self._config)
        if asked is None:
            return None
        assert isinstance(asked.rule, Rule)  # as `request_of` parsed it
        try:
            check_texts(asked.policy, lambda: self._known)
        except ValueError as error:  # the front end has refused it; an exception here would end the server
            logger.error("a request is verified losslessly: %s", error)
            return None
        protection, phases, budget = asked.policy.protection, asked.policy.phases, nats_of(asked)
        reports = asks_for_report(params.extra_args)
        metered = reports or math.isfinite(budget)
        if protection is not None and protection.pattern not in self.protected_ids:
            assert self._known is not None  # or `check_texts` would have said so
            self.protected_ids[protection.pattern] = protected_tokens(protection.pattern, self._known).to(self.device)
        return RelaxedRequest(
            asked.rule,
            budget,
            self.meter.slot_of(params, begun, self._slots_in_use) if metered else None,
            None if protection is None else protection.pattern,
            math.inf if protection is None else protection.threshold,
            None if phases == Phases() else phases,
            reports,
        )

    def couples(self, params: Any) -> bool:
        """Whether a request is coupled; what the front end refuses is not."""
        try:
            return self._config.couples(params)
        except (TypeError, ValueError) as error:
            logger.error("a request is not coupled: %s", error)
            return False

    def counted(self) -> dict[int, list[float]]:
        """Return the counts of the requests that ask for a report, by index; this waits for the device."""
        asking = {index: request.meter_slot for index, request in self.requests.items() if request.reports}
        if not asking:
            return {}
        slots = torch.tensor(list(asking.values()), device=self.device)
        return dict(zip(asking, self.meter.counts[slots].tolist(), strict=True))

    def _slots_in_use(self) -> set[int | None]:
        return {request.meter_slot for request in self.requests.values()}


def counters_of(config: ServerConfig, device: torch.device) -> DeviceCounters | None:
    """Return this worker's counters; None if metrics are off, or another worker of its group counts."""
    from vllm.distributed import parallel_state

    if not config.metrics:
        return None
    if parallel_state.model_parallel_is_initialized() and parallel_state.get_tensor_model_parallel_rank() != 0:
        return None
    own = None if config.default is None else config.default.rule
    return DeviceCounters(RuleCounters(own=own), config.audit_fraction, device)
