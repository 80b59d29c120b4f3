"""The V1 runner's seam: the repair of a function of vLLM, where it is broken and only there."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from cactus_decoding.integrations.vllm.patching import is_replaced
from cactus_decoding.integrations.vllm.v1 import repair_expansion


def broken(x: torch.Tensor, ends: torch.Tensor, num_tokens: int, *_: int) -> torch.Tensor:
    return torch.full((num_tokens,), 0.25)  # whatever the memory held


def sound(x: torch.Tensor, ends: torch.Tensor, num_tokens: int, *_: int) -> torch.Tensor:
    return x.repeat_interleave(torch.tensor([ends[0], *ends.diff()]))


@pytest.mark.parametrize(
    ("function", "device", "replaced"),
    [(broken, "cpu", True), (broken, "cuda", False), (sound, "cpu", False)],
)
def test_the_expansion_is_replaced_where_it_fails(function, device: str, replaced: bool) -> None:
    sampler = SimpleNamespace(expand_batch_to_tokens=function)
    for _ in range(2):
        repair_expansion(sampler, torch.device(device))
        assert is_replaced(sampler.expand_batch_to_tokens) == replaced
    if replaced:
        values, ends = torch.tensor([0.0, 0.5]), torch.tensor([2, 3])
        assert sampler.expand_batch_to_tokens(values, ends, 3, 0, 1).tolist() == [1.0, 1.0, 0.5]
