"""What tests of the core share: the bundled pair with some prompts, and two tiny models."""

from __future__ import annotations

from itertools import islice

import pytest
from support.tiny_models import tiny_llama
from transformers import LlamaForCausalLM

from cactus_decoding import Pair, load_pair
from cactus_decoding.engines.transformers.cached_model import CachedModel
from cactus_decoding.zoo.word_problems import word_problems


@pytest.fixture(scope="module")
def pair() -> Pair:
    return load_pair()


@pytest.fixture(scope="session")
def prompts() -> list[str]:
    return [problem.prompt for problem in islice(word_problems("validation", seed=7), 4)]


@pytest.fixture(scope="session")
def prompt(prompts: list[str]) -> str:
    return prompts[0]


@pytest.fixture(scope="module")
def target() -> CachedModel:
    return CachedModel(tiny_llama(0))


@pytest.fixture(scope="module")
def draft() -> LlamaForCausalLM:
    return tiny_llama(1)
