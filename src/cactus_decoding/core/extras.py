"""What to run where an optional dependency is missing: a command that works from where the package was installed."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

_PROJECT = Path(__file__).resolve().parents[3]


def install_command(extra: str) -> str:
    return _install(f"{_PROJECT}[{extra}]", f"cactus-decoding[{extra}]{_origin()}")


def install_conform() -> str:
    return _install(str(_PROJECT / "packages" / "conform"), f"cactus-conform{_origin('packages/conform')}")


def _install(folder: str, name: str) -> str:
    # a clone, which no index need know: its project file stands above src/
    cloned = (_PROJECT / "pyproject.toml").is_file() and (_PROJECT / "src" / "cactus_decoding").is_dir()
    given = ["-e", folder] if cloned else [name]
    return shlex.join([sys.executable or "python", "-m", "pip", "install", *given])


def _origin(folder: str = "") -> str:
    """Return where pip has the package from, or a folder beside it, as a requirement says it; nothing for an index."""
    try:
        recorded = distribution("cactus-decoding").read_text("direct_url.json")
    except PackageNotFoundError:
        recorded = None
    if recorded is None:
        return ""
    origin = json.loads(recorded)
    if vcs := origin.get("vcs_info"):
        url = f"{vcs['vcs']}+{origin['url']}@{vcs['commit_id']}"
        return f" @ {url}#subdirectory={folder}" if folder else f" @ {url}"
    if folder and "dir_info" not in origin:
        return ""  # a file has no folders beside it
    return f" @ {origin['url']}/{folder}".removesuffix("/")


@contextmanager
def needing(sentence: str, extra: str) -> Iterator[None]:
    """Import what an extra brings, or raise `ValueError` with a sentence and the command that adds the extra."""
    try:
        yield
    except ImportError as error:
        if (error.name or "").partition(".")[0] == "cactus_decoding":
            raise  # a mistake of our own
        raise ValueError(f"{sentence}: run {install_command(extra)}") from None
