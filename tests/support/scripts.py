"""The scripts of this repository, run as they are typed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


def run_script(name: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a script to its end, and keep what it said."""
    command = [sys.executable, str(SCRIPTS / name), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)
