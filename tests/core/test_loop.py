"""The loop over real models: the target's cache after rejections. What drafters owe it has tests of its own."""

from __future__ import annotations

import pytest
import torch
from support.loop_runs import PROMPT, run, tokens
from support.tiny_models import tiny_llama

from cactus_decoding import ModelDrafter
from cactus_decoding.engines.transformers.cached_model import CachedModel


@pytest.fixture(scope="module")
def target() -> CachedModel:
    return CachedModel(tiny_llama(0))


@pytest.fixture(scope="module")
def draft():
    return tiny_llama(1)


@pytest.mark.parametrize("rule", ["lossless", "cactus:delta=1.0"])
def test_the_cache_after_rejections_is_that_of_a_fresh_pass(target, draft, rule):
    steps = run(target, ModelDrafter(draft), rule, length=30)
    assert any(step.num_accepted < step.num_drafted for step in steps)
    ids = PROMPT + tokens(steps)
    rest = ids[target.length :]
    continued = target.append([*rest, 5], rows=1)
    with torch.no_grad():
        fresh = target.model(torch.tensor([[*ids, 5]])).logits[0, -1:]
        other = target.model(torch.tensor([[*ids[:-1], (ids[-1] + 1) % 8, 5]])).logits[0, -1:]
    # the model's norms work in float32; a cache with one wrong token is five orders of magnitude further away
    torch.testing.assert_close(continued, fresh, rtol=0, atol=1e-5)
    assert (other - fresh).abs().max() > 0.01
