"""What to run where an optional dependency is missing: one line that works here, from a clone or from an index."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

_PROJECT = Path(__file__).resolve().parents[3]


def install(extra: str) -> str:
    """Return the command that adds an extra to the environment that runs now.

    Example:
        >>> install("report").endswith("[report]") or install("report").endswith("[report]'")
        True
    """
    # a clone, which no index need know: its project file stands above src/
    cloned = (_PROJECT / "pyproject.toml").is_file() and (_PROJECT / "src" / "cactus_decoding").is_dir()
    given = ["-e", f"{_PROJECT}[{extra}]"] if cloned else [f"cactus-decoding[{extra}]"]
    return shlex.join([sys.executable or "python", "-m", "pip", "install", *given])
