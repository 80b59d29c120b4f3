"""What to run where a package is missing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needing(package: str) -> Iterator[None]:
    """Import a package, or raise `ValueError` with the command that installs it."""
    try:
        yield
    except ImportError:
        command = f"{sys.executable or 'python'} -m pip install {package}"
        raise ValueError(f"{package} is not installed: run {command}") from None
