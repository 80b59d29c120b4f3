"""Where a result comes from: what every result file carries."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

PACKAGE = Path(__file__).resolve().parents[2]


def provenance(arguments: Mapping[str, object]) -> dict[str, object]:
    from cactus_decoding import __version__

    return {
        "arguments": dict(arguments),
        "commit": commit(),
        "versions": {
            "cactus_decoding": __version__,
            "torch": torch.__version__,
            "transformers": version("transformers"),
            "python": platform.python_version(),
        }
        | _engines(),
        "machine": {
            "system": platform.system(),
            "architecture": platform.machine(),
            "processor": processor(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "accelerator": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        },
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def with_engines(before: Mapping[str, Any]) -> dict[str, Any]:
    return {**before, "versions": {**before.get("versions", {}), **_engines()}} if _engines() else dict(before)


def _engines() -> dict[str, str]:
    return {name: sys.modules[name].__version__ for name in ("llama_cpp",) if name in sys.modules}


def commit() -> str | None:
    """Return the commit of the checkout that the package runs from, with ``-dirty`` for local changes; else None."""
    checkout = PACKAGE.parents[1]
    if not (checkout / ".git").exists():  # installed, perhaps below a checkout of something else
        return None
    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() or None
    except (OSError, subprocess.CalledProcessError):  # no git, or no commit yet
        return None


def processor() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or None
