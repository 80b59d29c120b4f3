"""The seam to vLLM's V1 model runner: the function that samples against the target's logits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from cactus_decoding.integrations.vllm.counters import Counters
from cactus_decoding.integrations.vllm.patching import is_replaced, replace
from cactus_decoding.integrations.vllm.relaxed_step import sample_relaxed
from cactus_decoding.integrations.vllm.server_config import ServerConfig
from cactus_decoding.integrations.vllm.state import BatchRules


def install() -> None:
    """Hook into the function that builds the V1 runner's logits processors; the rest follows when it is called."""
    from vllm.v1.sample import logits_processor

    replace(logits_processor, "build_logitsprocs", with_batch_rules)


def with_batch_rules(stock: Callable[..., Any]) -> Callable[..., Any]:
    """Return `build_logitsprocs` with our batch state added, and see to the sampler that will look for it."""

    def build_logitsprocs(vllm_config: Any, device: torch.device, *args: Any, **kwargs: Any) -> Any:
        processors = stock(vllm_config, device, *args, **kwargs)
        config = ServerConfig.of(vllm_config)
        if not config.speculates:
            return processors
        from vllm.utils.torch_utils import async_tensor_h2d
        from vllm.v1.sample import rejection_sampler

        repair_expansion(rejection_sampler, device)
        replace(rejection_sampler, "rejection_sample", with_relaxation)
        counters = Counters(config.metrics and is_first_rank(), config.audit_fraction, device)
        most = vllm_config.scheduler_config.max_num_seqs
        processors.argmax_invariant.append(BatchRules(config.default, device, async_tensor_h2d, most, counters))
        return processors

    return build_logitsprocs


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
        return sample_relaxed(
            sample, layout, rules.meter, rules.counters, target_logits, draft_probs, draft_token_ids, padding
        )

    return rejection_sample


def batch_rules(sampling_metadata: Any) -> BatchRules | None:
    """Return our state among the batch's logits processors."""
    for processor in sampling_metadata.logitsprocs.argmax_invariant:
        if isinstance(processor, BatchRules):
            return processor
    return None


def is_first_rank() -> bool:
    """Say whether this worker is the one of its tensor-parallel group that counts."""
    from vllm.distributed import parallel_state

    if not parallel_state.model_parallel_is_initialized():
        return True
    return bool(parallel_state.get_tensor_model_parallel_rank() == 0)


def repair_expansion(rejection_sampler: Any, device: torch.device) -> None:
    """Replace `expand_batch_to_tokens` where it does not work.

    vLLM 0.32 on the CPU converts the arguments of the function below it to other types first, so that what the kernel
    writes is lost: temperatures, top-k and top-p of speculated positions are then whatever the memory held (vLLM issue
    55005). The function is tried out, so that a version without the fault keeps its own.
    """
    if torch.device(device).type != "cpu" or is_replaced(rejection_sampler.expand_batch_to_tokens):
        return
    for values in ([0.25, 1.5], [2.5, 0.75]):
        given, ends = torch.tensor(values), torch.tensor([1, 3], dtype=torch.int32)
        expected = torch.tensor([values[0], values[1], values[1]])
        if not torch.equal(rejection_sampler.expand_batch_to_tokens(given, ends, 3), expected):
            replace(rejection_sampler, "expand_batch_to_tokens", lambda stock: expand_batch_to_tokens)
            return


def expand_batch_to_tokens(
    x: Tensor, cu_num_tokens: Tensor, num_tokens: int, replace_from: int = 0, replace_to: int = 0
) -> Tensor:
    """Repeat each request's value for each of its positions, and replace one value by another.

    Example:
        >>> expand_batch_to_tokens(torch.tensor([0.0, 0.5]), torch.tensor([1, 3]), 3, 0, 1)
        tensor([1.0000, 0.5000, 0.5000])
    """
    counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
    return torch.where(x == replace_from, replace_to, x).to(x.dtype).repeat_interleave(counts, output_size=num_tokens)
