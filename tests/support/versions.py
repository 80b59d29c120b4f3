"""Tests of what only later versions of transformers have."""

from __future__ import annotations

import pytest
import transformers
from packaging.version import Version


def at_least(version: str) -> bool:
    return Version(transformers.__version__) >= Version(version)


def since(version: str) -> pytest.MarkDecorator:
    """Leave a test out on versions of transformers before the first that was tried and can do what it compares with."""
    return pytest.mark.skipif(not at_least(version), reason=f"transformers can do this since {version} or earlier")
