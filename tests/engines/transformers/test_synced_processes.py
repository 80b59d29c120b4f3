"""`generate` sets ``synced_gpus`` itself where weights are spread over processes; the loop cannot keep step there."""

from __future__ import annotations

import pytest
import torch
from support.tiny_models import tiny_llama
from support.versions import since
from torch import distributed
from torch.testing._internal.distributed.fake_pg import FakeStore

from cactus_decoding import NgramDrafter, speculative_generate

PROMPT = torch.tensor([[1, 2, 3]])


@pytest.fixture
def two_processes():
    distributed.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    yield
    distributed.destroy_process_group()


def spread(seed: int):
    """A model marked as `fully_shard` of transformers marks it."""
    model = tiny_llama(seed)
    model._is_fsdp_managed_module = True
    return model


def speculate(model, **given):
    return model.generate(
        PROMPT, custom_generate=speculative_generate, drafter=NgramDrafter(), max_new_tokens=5, **given
    )


def test_a_model_that_is_spread_over_processes_is_refused(two_processes):
    with pytest.raises(ValueError, match=r"synced_gpus, which `generate` sets .*FSDP, ZeRO-3"):
        speculate(spread(0))


def test_who_says_that_processes_need_no_step_is_believed(two_processes):
    assert speculate(spread(0), synced_gpus=False).shape == (1, 8)


@since("5.19.0")  # earlier ones fail in `generate` itself where there is one process
def test_other_models_and_single_processes_are_not_refused(two_processes):
    assert speculate(tiny_llama(0)).shape == (1, 8)
    distributed.destroy_process_group()
    assert speculate(spread(0)).shape == (1, 8)
    distributed.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
