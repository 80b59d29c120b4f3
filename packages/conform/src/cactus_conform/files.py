"""Result files: whether they can be written, what they carry, and writing them all or nothing."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import NamedTemporaryFile

_VERSIONS = ("cactus-conform", "numpy", "cactus-decoding", "llama-cpp-python", "torch", "transformers", "vllm")


def check_writable(path: Path | None) -> None:
    """Raise `ValueError` for a path that cannot be written, before any work."""
    if path is None or (path.exists() and not path.is_file() and not path.is_dir()):
        return
    place = path if path.exists() else path.parent
    why = (
        "it is a folder" if path.is_dir()
        else "its folder is missing" if not place.exists()
        else "it is read-only" if not os.access(place, os.W_OK)
        else ""
    )  # fmt: skip
    if why:
        raise ValueError(f"cannot write {str(path)!r}: {why}")


def write_json(path: Path, result: object) -> None:
    """Write a file beside its place and rename it; write what is no regular file, such as a pipe, as it is."""
    text = json.dumps(result, indent=1, allow_nan=False) + "\n"
    if path.exists() and not path.is_file():
        path.write_text(text)
        return
    place = Path(os.path.realpath(path))  # a symbolic link stays
    with NamedTemporaryFile("w", dir=place.parent, prefix=place.name, delete=False) as beside:
        try:
            beside.write(text)
            beside.close()
            if place.exists():
                shutil.copymode(place, beside.name)
            else:
                os.chmod(beside.name, 0o666 & ~_umask())
            os.replace(beside.name, place)
        except BaseException:
            os.unlink(beside.name)
            raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def provenance(arguments: Mapping[str, object]) -> dict[str, object]:
    """Return where a result comes from, for JSON; seeds are among the arguments."""
    versions = {name: _version(name) for name in _VERSIONS}
    return {
        "arguments": dict(arguments),
        "commit": _commit(),
        "versions": {name: each for name, each in versions.items() if each} | {"python": platform.python_version()},
        "machine": {"system": platform.system(), "architecture": platform.machine(), "cores": os.cpu_count()},
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    """Return the commit of the checkout that the package runs from, with ``-dirty`` for local changes; else None."""
    checkout = Path(__file__).resolve().parents[4]
    if not (checkout / ".git").exists():  # installed, perhaps below a checkout of something else
        return None
    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() or None
    except (OSError, subprocess.CalledProcessError):  # no git, or no commit yet
        return None
