"""Where a user's own files are; some users have no home directory, such as that of a container without an entry."""

from __future__ import annotations

import os
from pathlib import Path

NOWHERE = Path(os.devnull, "no-home-directory")
"""Below what is no folder: nothing can be read or written there, and messages that name it say why."""


def expanded(path: str | Path) -> Path:
    """Return a path with a leading ``~`` replaced, where there is such a home; `Path.expanduser` raises elsewhere."""
    return Path(os.path.expanduser(path))


def user_cache() -> Path:
    """Return this package's folder for what may be deleted at any time; without a home it is in `NOWHERE`."""
    found = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    return (NOWHERE if found.parts[0] == "~" else found) / "cactus-decoding"
