"""The patches of vLLM's V1 model runner, around the function that samples against the target's logits."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from cactus_decoding.core.rules.base import Rule
from cactus_decoding.engines.vllm import drafting
from cactus_decoding.engines.vllm.coupling import CoupledBatch, CoupledRequest
from cactus_decoding.engines.vllm.extra_args import ServerConfig, server_vocabulary
from cactus_decoding.engines.vllm.patches import repair_empty_steps, repair_expansion, repair_generators, replace
from cactus_decoding.engines.vllm.reports import install_worker
from cactus_decoding.engines.vllm.state import FollowedResponse, RequestRules, counters_of
from cactus_decoding.engines.vllm.step import Group, Layout, Protected, RelaxedStep


def install() -> None:
    from vllm.v1.sample import logits_processor

    replace(logits_processor, "build_logitsprocs", with_batch_rules)


def with_batch_rules(stock: Callable[..., Any]) -> Callable[..., Any]:
    """Add our batch state to vLLM's logits processors, and patch the sampler that looks for it."""

    def build_logitsprocs(vllm_config: Any, device: torch.device, *args: Any, **kwargs: Any) -> Any:
        processors = stock(vllm_config, device, *args, **kwargs)
        repair_generators(device)
        config, max_num_requests = ServerConfig.of(vllm_config), vllm_config.scheduler_config.max_num_seqs
        if not config.speculates:  # its requests may be coupled
            processors.argmax_invariant.append(BatchRules(config, device, max_num_requests))
            return processors
        from vllm.v1.sample import rejection_sampler
        from vllm.v1.worker.gpu_input_batch import InputBatch
        from vllm.v1.worker.gpu_model_runner import GPUModelRunner

        repair_expansion(rejection_sampler, device)
        repair_empty_steps(rejection_sampler, device)
        install_worker()
        drafting.install()
        replace(rejection_sampler, "rejection_sample", with_rules)
        replace(InputBatch, "_make_sampling_metadata", with_output_tokens)
        replace(GPUModelRunner, "_copy_draft_token_ids_to_cpu", with_fillers_noticed)
        counters, vocabulary = counters_of(config, device), server_vocabulary(vllm_config)
        rules = BatchRules(config, device, max_num_requests, counters, vocabulary)
        processors.argmax_invariant.append(rules)
        return processors

    return build_logitsprocs


class BatchRules(RequestRules):
    """The rules of the requests by their index in the batch; vLLM updates it as a logits processor."""

    _layout: tuple[tuple[int, ...], Layout] | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.coupled = CoupledBatch()
        self.filled = False  # whether the proposals of the next step are fillers that no draft made

    def is_argmax_invariant(self) -> bool:
        return True

    def apply(self, logits: Tensor) -> Tensor:
        """Draw the tokens of coupled requests; other rows stay, as what nobody drafted needs them unrelaxed."""
        self.coupled.draw(logits)
        return logits

    def update_state(self, batch_update: Any) -> None:
        """Follow the requests that vLLM adds to, removes from and moves within its batch."""
        from vllm.v1.sample.logits_processor.builtin import process_dict_updates

        def admit(params: Any, prompt_ids: Sequence[int] | None, output_ids: list[int]) -> Any:
            request = self.admit(params, begun=len(output_ids) > 0)
            if request is None or request.phases is None:
                return request
            response = FollowedResponse(request.phases, self.vocabulary, prompt_ids or (), output_ids)
            return dataclasses.replace(request, response=response)

        def couple(params: Any, prompt_ids: Sequence[int] | None, output_ids: list[int]) -> CoupledRequest | None:
            return CoupledRequest.of(params, prompt_ids, output_ids) if self.couples(params) else None

        if process_dict_updates(self.requests, batch_update, admit):
            self._layout = None
        process_dict_updates(self.coupled.requests, batch_update, couple)

    @property
    def reads_tokens(self) -> bool:
        return bool(self._followed())

    def _followed(self) -> dict[int, FollowedResponse]:
        found = ((index, request.response) for index, request in self.requests.items())
        return {index: response for index, response in found if response is not None and not response.settled}

    def layout(self, num_draft_tokens: Sequence[int], max_draft_tokens: int, draft_token_ids: Tensor) -> Layout | None:
        """Return where the rows of a step are, or None where none is relaxed."""
        if not self.requests or self.filled:
            return None
        counts = tuple(num_draft_tokens)
        if self._layout is None or self._layout[0] != counts:
            self._layout = counts, self._lay_out(counts, max_draft_tokens)
        layout = self._layout[1]
        if not layout.groups:
            return None
        if not (followed := self._followed()):
            return layout
        reads_tokens = any(response.reads_tokens for response in followed.values())
        drafted = draft_token_ids.tolist() if reads_tokens else [0] * sum(counts)
        relaxable: list[bool] = []
        for index, count in enumerate(counts):
            own = drafted[len(relaxable) : len(relaxable) + count]
            relaxable += followed[index].relaxable(own) if index in followed else [True] * count
        return dataclasses.replace(layout, relaxable=self._to_device(relaxable, torch.bool))

    def _to_device(self, values: list[Any], dtype: torch.dtype = torch.int64) -> Tensor:
        from vllm.utils.torch_utils import async_tensor_h2d

        tensor: Tensor = async_tensor_h2d(values, self.device, dtype)  # nothing waits for the device
        return tensor

    def _lay_out(self, counts: tuple[int, ...], width: int) -> Layout:
        to_device = self._to_device
        ends = list(accumulate(counts))
        rows: dict[Rule, list[int]] = {}
        protected: dict[str, tuple[list[int], list[float]]] = {}
        here = {index: request for index, request in sorted(self.requests.items()) if index < len(counts)}
        for index, request in here.items():
            own = range(ends[index] - counts[index], ends[index])
            rows.setdefault(request.rule, []).extend(own)
            if request.pattern is not None and own:
                some, thresholds = protected.setdefault(request.pattern, ([], []))
                some += own
                thresholds += [request.threshold] * len(own)
        budgets, slots = [math.inf] * len(counts), [0] * len(counts)
        for index, request in here.items():
            budgets[index], slots[index] = request.budget, request.meter_slot or 0
        reporting = {index for index, request in here.items() if request.reports}
        return Layout(
            groups=[Group(rule, to_device(some)) for rule, some in rows.items() if some],
            requests=to_device([index for index, count in enumerate(counts) for _ in range(count)]),
            depths=to_device([depth for count in counts for depth in range(count)]),
            width=width,
            budgets=to_device(budgets, torch.float64) if any(map(math.isfinite, budgets)) else None,
            meter_slots=to_device(slots),
            protected=[
                Protected(to_device(some), self.protected_ids[pattern], to_device(thresholds, torch.float64))
                for pattern, (some, thresholds) in protected.items()
            ],
            reporting=to_device([index in reporting for index in range(len(counts))], torch.bool)
            if reporting
            else None,
        )


@dataclass(frozen=True, eq=False)
class DraftProbs:
    probs: Tensor

    @property
    def width(self) -> int:
        return self.probs.shape[1]

    def rows(self, some: Tensor) -> Tensor:
        return self.probs[some]

    def of_tokens(self, some: Tensor, token_ids: Tensor) -> Tensor:
        return self.probs[some, token_ids]


def with_rules(stock: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Relax the proposals of requests with a rule, and draw the tokens of coupled ones by their seeds' noise."""
    from vllm.v1.sample.rejection_sampler import PLACEHOLDER_TOKEN_ID

    padding = int(getattr(PLACEHOLDER_TOKEN_ID, "value", PLACEHOLDER_TOKEN_ID))

    def rejection_sample(
        draft_token_ids: Tensor,
        num_draft_tokens: Sequence[int],
        max_spec_len: int,
        cu_num_draft_tokens: Tensor,
        draft_probs: Tensor | None,
        target_logits: Tensor,
        bonus_token_ids: Tensor,
        sampling_metadata: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Tensor:
        def sample(bonus: Tensor) -> Tensor:
            if not len(draft_token_ids):  # vLLM would draw noise for every token of the vocabulary, and not use it
                return bonus.to(torch.int32)
            return stock(
                draft_token_ids, num_draft_tokens, max_spec_len, cu_num_draft_tokens, draft_probs, target_logits,
                bonus, sampling_metadata, *args, **kwargs,
            )  # fmt: skip

        rules = batch_rules(sampling_metadata)
        if rules is None:
            return sample(bonus_token_ids)
        with rules.coupled.verification(target_logits, draft_token_ids, num_draft_tokens, bonus_token_ids) as bonus:
            layout = rules.layout(num_draft_tokens, max_spec_len, draft_token_ids)
            if layout is None:
                return sample(bonus)
            draft = None if draft_probs is None else DraftProbs(draft_probs)
            step = RelaxedStep(layout, rules.meter, rules.counters, target_logits, draft_token_ids, draft)
            with step.relaxed_logits():
                sampled = sample(bonus)
            step.settle((sampled != padding).sum(1))
            return sampled

    return rejection_sample


def with_fillers_noticed(stock: Callable[..., None]) -> Callable[..., None]:
    """Note where a request's end is so near that vLLM proposes token 0 to all; rules would take that for a draft's."""

    def copy_draft_token_ids_to_cpu(runner: Any, scheduler_output: Any, zeros_only: bool = False) -> None:
        if (rules := batch_rules(runner.input_batch)) is not None:
            rules.filled = zeros_only
        stock(runner, scheduler_output, zeros_only)

    return copy_draft_token_ids_to_cpu


def with_output_tokens(stock: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Keep output tokens on the host while a request's phases need them.

    vLLM's V1 runner otherwise leaves them on the device where it schedules ahead (not on the CPU).
    """

    def make_sampling_metadata(batch: Any) -> Any:
        rules, before = batch_rules(batch), batch.logitsprocs_need_output_token_ids
        batch.logitsprocs_need_output_token_ids = before or (rules is not None and rules.reads_tokens)
        try:
            return stock(batch)
        finally:
            batch.logitsprocs_need_output_token_ids = before

    return make_sampling_metadata


def batch_rules(batch: Any) -> BatchRules | None:
    return next((each for each in batch.logitsprocs.argmax_invariant if isinstance(each, BatchRules)), None)
