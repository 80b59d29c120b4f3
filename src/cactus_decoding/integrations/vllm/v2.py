"""The seam to vLLM's V2 model runner: the same idea as for V1, with what depends on a request kept on the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from cactus_decoding.integrations.vllm import slots
from cactus_decoding.integrations.vllm.counters import Counters
from cactus_decoding.integrations.vllm.patching import replace
from cactus_decoding.integrations.vllm.server_config import ServerConfig
from cactus_decoding.integrations.vllm.slot_step import SlotStep, rows_of_step
from cactus_decoding.integrations.vllm.v1 import is_first_rank


def install() -> None:
    """Hook into the V2 runner's logits processors and its sampler."""
    from vllm.v1.worker.gpu.sample import logits_processor

    replace(logits_processor, "build_custom_logits_processors", with_slot_rules)


def with_slot_rules(stock: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    """Return `build_custom_logits_processors` with our state added, and see to the sampler that will look for it."""

    def build(vllm_config: Any, req_states: Any, *args: Any, **kwargs: Any) -> list[Any]:
        processors = stock(vllm_config, req_states, *args, **kwargs)
        config = ServerConfig.of(vllm_config)
        if not config.speculates:
            return processors
        from vllm.v1.worker.gpu.spec_decode import rejection_sampler

        replace(rejection_sampler, "rejection_sample", with_relaxation)
        counters = Counters(config.metrics and is_first_rank(), config.audit_fraction, req_states.device)

        def begun(slot: int) -> bool:
            return bool(req_states.prefill_len.np[slot] > req_states.prompt_len.np[slot])

        rules = slots.SlotRules(config.default, req_states.device, req_states.max_num_reqs, begun, counters)
        return [*processors, rules]

    return build


def with_relaxation(stock: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., tuple[Tensor, Tensor]]:
    """Return `rejection_sample` that relaxes the rows of requests with a rule; without any it is the stock one."""

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
        seeds: Tensor,
        num_speculative_steps: int,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor]:
        rules, step, logits = slots.take(), None, target_logits
        if rules is not None and rules.present:
            rows = rows_of_step(
                rules,
                target_logits,
                draft_logits,
                draft_sampled,
                expanded_idx_mapping.long(),
                expanded_local_pos.long(),
                temperature,
            )
            step = SlotStep(rules, rows, num_speculative_steps)
            logits = step.logits
        sampled, num_sampled = stock(
            logits,
            draft_logits,
            draft_sampled,
            cu_num_logits,
            pos,
            idx_mapping,
            expanded_idx_mapping,
            expanded_local_pos,
            temperature,
            seeds,
            num_speculative_steps,
            *args,
            **kwargs,
        )
        if step is not None:
            step.settle(idx_mapping, num_sampled)
        return sampled, num_sampled

    return rejection_sample
