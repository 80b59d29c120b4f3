"""What a cached model is told besides tokens, and what it then returns besides logits."""

from __future__ import annotations

import pytest
from support.tiny_models import tiny_llama

from cactus_decoding.engines.transformers.cached_model import CachedModel


def test_extra_inputs_call_for_transformers_pass():
    cached = CachedModel(tiny_llama(0))
    cached.extra_inputs = {"output_hidden_states": True}
    cached.append([1, 2, 3], rows=1)
    assert len(cached.outputs.hidden_states) == 3
    cached.extra_inputs = {"output_hidden_states": True}  # the same again is no change
    with pytest.raises(ValueError, match="while the cache is empty, but it holds 3 tokens"):
        cached.extra_inputs = {}
    cached.reset()
    cached.append([1, 2, 3], rows=1)
    assert cached.outputs is None
