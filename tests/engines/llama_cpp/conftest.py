from __future__ import annotations

import pytest
from llama_cpp import Llama

from cactus_decoding.engines.llama_cpp.llama import CactusLlama

SHAPE = {"n_ctx": 512, "n_threads": 1, "n_threads_batch": 1, "type_k": 0, "type_v": 0, "verbose": False}
"""Keys, values and attention in float32, so that rows do not depend on how many tokens are read at once."""


@pytest.fixture(scope="module")
def ours(gguf):
    draft = f"{gguf('worded')}:cache=float32"
    llama = CactusLlama(gguf("target"), draft=draft, num_speculative_tokens=4, logits_all=True, **SHAPE)
    yield llama
    llama.close()


@pytest.fixture(scope="module")
def theirs(gguf):
    llama = Llama(str(gguf("target")), logits_all=True, **SHAPE)
    yield llama
    llama.close()
