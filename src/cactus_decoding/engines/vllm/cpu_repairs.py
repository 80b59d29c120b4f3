"""Repairs of three faults of vLLM 0.32 on the CPU: one samples from wrong distributions, two end the server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cactus_decoding.engines.vllm.patches import is_replaced, replace


def repair_generators(device: torch.device) -> None:
    """Keep seeded requests' generators out of steps that read a part of a prompt; on the CPU only.

    vLLM discards what such a step draws and sets the generator back by its offset, which generators on the CPU do not
    have. The exception ends the engine, and with it every request. Without a generator nothing is set back.
    """
    if torch.device(device).type != "cpu":
        return
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner

    replace(CPUModelRunner, "sample_tokens", with_generators_withheld)


def with_generators_withheld(stock: Callable[..., Any]) -> Callable[..., Any]:
    """Withhold the generators of requests whose draws the step discards.

    Those requests draw from the common generator instead. Their own begins at the first token that counts, as on a GPU,
    where vLLM sets it back.
    """

    def sample_tokens(runner: Any, *args: Any, **kwargs: Any) -> Any:
        batch = runner.input_batch
        discarded = np.flatnonzero(runner.discard_request_mask.np[: batch.num_reqs]).tolist()
        withheld = {index: batch.generators.pop(index) for index in discarded if index in batch.generators}
        try:
            return stock(runner, *args, **kwargs)
        finally:
            batch.generators.update(withheld)

    return sample_tokens


def repair_expansion(rejection_sampler: Any, device: torch.device) -> None:
    """Replace `expand_batch_to_tokens` where it does not work.

    vLLM 0.32 on the CPU first converts the arguments of the kernel to other types, so that what the kernel writes is
    lost: temperatures, top-k and top-p of speculated positions are then uninitialized memory (vLLM issue 55005). The
    function is tried out, so that a version without the fault keeps its own.
    """
    if torch.device(device).type != "cpu" or is_replaced(rejection_sampler.expand_batch_to_tokens):
        return
    for values in ([0.25, 1.5], [2.5, 0.75]):
        given, ends = torch.tensor(values), torch.tensor([1, 3], dtype=torch.int32)
        expected = torch.tensor([values[0], values[1], values[1]])
        if not torch.equal(rejection_sampler.expand_batch_to_tokens(given, ends, 3), expected):
            replace(rejection_sampler, "expand_batch_to_tokens", lambda stock: expand_batch_to_tokens)
            return


def repair_empty_steps(rejection_sampler: Any, device: torch.device) -> None:
    """Skip top-k and top-p where no request of a step has a proposal, as at the end of ``max_tokens``; on the CPU only.

    vLLM takes the largest top-k of the speculated positions, which fails where there is none, and ends the engine.
    """
    if torch.device(device).type == "cpu":
        replace(
            rejection_sampler,
            "apply_sampling_constraints",
            lambda stock: lambda logits, *args, **kwargs: stock(logits, *args, **kwargs) if len(logits) else logits,
        )


def expand_batch_to_tokens(
    x: Tensor, cu_num_tokens: Tensor, num_tokens: int, replace_from: int = 0, replace_to: int = 0
) -> Tensor:
    counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
    return torch.where(x == replace_from, replace_to, x).to(x.dtype).repeat_interleave(counts, output_size=num_tokens)
