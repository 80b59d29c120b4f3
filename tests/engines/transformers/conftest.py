"""A target and a draft that disagree."""

import pytest
from support.tiny_models import tiny_llama


@pytest.fixture(scope="module")
def target():
    return tiny_llama(0)


@pytest.fixture(scope="module")
def draft():
    return tiny_llama(1)
