"""A server and a pair that tests of the playground share."""

from __future__ import annotations

import pytest
from support.playground_server import running

from cactus_decoding import load_pair


@pytest.fixture(scope="module")
def server():
    with running() as started:
        yield started


@pytest.fixture(scope="module")
def pair():
    return load_pair()
