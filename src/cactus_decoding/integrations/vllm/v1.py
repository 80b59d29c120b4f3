"""The seam to vLLM's V1 model runner: the function that samples against the target's logits."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from cactus_decoding.integrations.common.step import Group, Layout, RelaxedStep
from cactus_decoding.integrations.vllm.cpu_repairs import repair_expansion, repair_generators
from cactus_decoding.integrations.vllm.patching import replace
from cactus_decoding.integrations.vllm.request import ServerConfig
from cactus_decoding.integrations.vllm.state import RequestRules, counters_of
from cactus_decoding.rules.base import Rule


def install() -> None:
    """Hook into the function that builds the V1 runner's logits processors; the rest follows when it is called."""
    from vllm.v1.sample import logits_processor

    replace(logits_processor, "build_logitsprocs", with_batch_rules)


def with_batch_rules(stock: Callable[..., Any]) -> Callable[..., Any]:
    """Return `build_logitsprocs` with our batch state added, and see to the sampler that will look for it."""

    def build_logitsprocs(vllm_config: Any, device: torch.device, *args: Any, **kwargs: Any) -> Any:
        processors = stock(vllm_config, device, *args, **kwargs)
        repair_generators(device)
        config = ServerConfig.of(vllm_config)
        if not config.speculates:
            return processors
        from vllm.v1.sample import rejection_sampler

        repair_expansion(rejection_sampler, device)
        replace(rejection_sampler, "rejection_sample", with_relaxation)
        max_num_requests = vllm_config.scheduler_config.max_num_seqs
        rules = BatchRules(config.default, device, max_num_requests, counters_of(config, device))
        processors.argmax_invariant.append(rules)
        return processors

    return build_logitsprocs


class BatchRules(RequestRules):
    """The rules of the requests by their index in the batch; vLLM keeps it up to date as a logits processor."""

    _layout: tuple[tuple[int, ...], Layout] | None = None

    def is_argmax_invariant(self) -> bool:
        """Say that no logits are changed (here)."""
        return True

    def apply(self, logits: Tensor) -> Tensor:
        """Return the logits as they are: they are needed unrelaxed for tokens that nobody drafted."""
        return logits

    def update_state(self, batch_update: Any) -> None:
        """Follow the requests that vLLM adds to, removes from and moves within its batch."""
        from vllm.v1.sample.logits_processor.builtin import process_dict_updates

        def admit(params: Any, _: Any, output_ids: Sequence[int]) -> Any:
            return self.admit(params, begun=len(output_ids) > 0)

        if process_dict_updates(self.requests, batch_update, admit):
            self._layout = None

    def layout(self, num_draft_tokens: Sequence[int], max_draft_tokens: int) -> Layout | None:
        """Return where the rows of a step are, or None where none is relaxed."""
        if not self.requests:
            return None
        counts = tuple(num_draft_tokens)
        if self._layout is None or self._layout[0] != counts:
            self._layout = counts, self._lay_out(counts, max_draft_tokens)
        layout = self._layout[1]
        return layout if layout.groups else None

    def _lay_out(self, counts: tuple[int, ...], width: int) -> Layout:
        from vllm.utils.torch_utils import async_tensor_h2d

        def to_device(values: list[Any], dtype: torch.dtype = torch.int64) -> Tensor:
            tensor: Tensor = async_tensor_h2d(values, self.device, dtype)  # nothing waits for the device
            return tensor

        ends = list(accumulate(counts))
        rows: dict[Rule, list[int]] = {}
        here = {index: request for index, request in sorted(self.requests.items()) if index < len(counts)}
        for index, request in here.items():
            rows.setdefault(request.rule, []).extend(range(ends[index] - counts[index], ends[index]))
        budgets, slots = [math.inf] * len(counts), [0] * len(counts)
        for index, request in here.items():
            budgets[index], slots[index] = request.budget, request.meter_slot or 0
        return Layout(
            groups=[Group(rule, to_device(some)) for rule, some in rows.items() if some],
            requests=to_device([index for index, count in enumerate(counts) for _ in range(count)]),
            depths=to_device([depth for count in counts for depth in range(count)]),
            width=width,
            budgets=to_device(budgets, torch.float64) if any(map(math.isfinite, budgets)) else None,
            meter_slots=to_device(slots),
        )


@dataclass(frozen=True, eq=False)
class DraftProbs:
    """The draft's probabilities in the rows of a step, ``[rows, vocabulary]``."""

    probs: Tensor

    @property
    def width(self) -> int:
        """Of the vocabulary."""
        return self.probs.shape[1]

    def rows(self, some: Tensor) -> Tensor:
        """Return some rows."""
        return self.probs[some]

    def of_tokens(self, some: Tensor, token_ids: Tensor) -> Tensor:
        """Return what these give one token each."""
        return self.probs[some, token_ids]


def with_relaxation(stock: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return `rejection_sample` that relaxes the rows of requests with a rule; without any it is the stock one."""
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
        def sample() -> Tensor:
            return stock(
                draft_token_ids,
                num_draft_tokens,
                max_spec_len,
                cu_num_draft_tokens,
                draft_probs,
                target_logits,
                bonus_token_ids,
                sampling_metadata,
                *args,
                **kwargs,
            )

        rules = batch_rules(sampling_metadata)
        layout = rules.layout(num_draft_tokens, max_spec_len) if rules is not None else None
        if rules is None or layout is None:
            return sample()
        draft = None if draft_probs is None else DraftProbs(draft_probs)
        step = RelaxedStep(layout, rules.meter, rules.counters, target_logits, draft_token_ids, draft)
        with step.relaxed_logits():
            sampled = sample()
        step.settle((sampled != padding).sum(1))
        return sampled

    return rejection_sample


def batch_rules(sampling_metadata: Any) -> BatchRules | None:
    """Return our state among the batch's logits processors."""
    for processor in sampling_metadata.logitsprocs.argmax_invariant:
        if isinstance(processor, BatchRules):
            return processor
    return None
