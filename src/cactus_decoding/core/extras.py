"""What to run where an optional dependency is missing: a command that works from a clone or from an index."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PROJECT = Path(__file__).resolve().parents[3]


def install(extra: str) -> str:
    """Return the command that adds an extra to the current environment."""
    return _install(f"{_PROJECT}[{extra}]", f"cactus-decoding[{extra}]")


def install_conform() -> str:
    """Return the command that adds cactus-conform to the current environment."""
    return _install(str(_PROJECT / "packages" / "conform"), "cactus-conform")


def _install(folder: str, name: str) -> str:
    # a clone, which no index need know: its project file stands above src/
    cloned = (_PROJECT / "pyproject.toml").is_file() and (_PROJECT / "src" / "cactus_decoding").is_dir()
    given = ["-e", folder] if cloned else [name]
    return shlex.join([sys.executable or "python", "-m", "pip", "install", *given])


@contextmanager
def needing(sentence: str, extra: str) -> Iterator[None]:
    """Import what an extra brings, or raise `ValueError` with a sentence and the command that adds the extra."""
    try:
        yield
    except ImportError as error:
        if (error.name or "").partition(".")[0] == "cactus_decoding":
            raise  # a mistake of our own
        raise ValueError(f"{sentence}: run {install(extra)}") from None
