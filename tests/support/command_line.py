"""The command line as a process of its own."""

from __future__ import annotations

import subprocess
import sys


def process(*arguments: str, tell_start: bool = False, **options) -> subprocess.Popen:
    """Start a command; ``tell_start`` writes a dot to stdout once the command runs: until then it is Python's."""
    tell = "os.write(1, b'.'); " if tell_start else ""
    code = f"import os, sys; from cactus_decoding.cli import main; {tell}sys.exit(main())"
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.Popen(command, **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | options)
