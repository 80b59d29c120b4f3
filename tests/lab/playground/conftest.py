"""A server that tests of the playground share."""

from __future__ import annotations

import pytest
from support.playground_server import running


@pytest.fixture(scope="module")
def server():
    with running() as started:
        yield started
