"""The bundled pair, for tests of a module."""

from __future__ import annotations

import pytest

from cactus_decoding import load_pair


@pytest.fixture(scope="module")
def pair():
    return load_pair()
