"""Result files: all or nothing, with where they come from."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TextIO

_VERSIONS = ("cactus-conform", "numpy", "cactus-decoding", "llama-cpp-python", "torch", "transformers", "vllm")


@contextmanager
def writing(path: Path) -> Iterator[TextIO]:
    """Open a file that takes the path's place once the block is done; a pipe or a device is written as it is.

    Raises `ValueError`, before the block, for a path that cannot be written.
    """
    place = Path(os.path.realpath(path))  # a symbolic link stays
    special = place.exists() and not place.is_file()
    beside = place if special else place.with_name(f"{place.name}.{os.getpid()}.part")
    try:
        file = beside.open("w")
    except OSError as error:
        raise ValueError(f"cannot write {str(path)!r}: {error.strerror}") from None
    try:
        with file:
            yield file
        if not special:
            os.replace(beside, place)
    finally:
        if not special:
            beside.unlink(missing_ok=True)


def provenance(arguments: Mapping[str, object]) -> dict[str, object]:
    """Return where a result comes from, for JSON; seeds are among the arguments."""
    versions = {"python": platform.python_version()}
    for name in _VERSIONS:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return {
        "arguments": dict(arguments),
        "commit": _commit(),
        "versions": versions,
        "machine": platform.platform(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _commit() -> str | None:
    """Return the commit of the checkout that the package runs from, with ``-dirty`` for local changes; else None."""
    checkout = Path(__file__).resolve().parents[4]
    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    if not (checkout / ".git").exists():  # installed, perhaps below a checkout of something else
        return None
    with suppress(OSError, subprocess.CalledProcessError):  # no git, or no commit yet
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() or None
    return None
