"""The command line as a process of its own."""

from __future__ import annotations

import subprocess
import sys


def process(*arguments: str, tell_start: bool = False, **options) -> subprocess.Popen:
    """Start a command; ``tell_start`` writes a dot to stdout as soon as Python runs."""
    code = "import sys; from cactus_decoding.cli import main; sys.exit(main())"
    if tell_start:
        code = f"import os; os.write(1, b'.'); {code}"
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.Popen(command, **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | options)
