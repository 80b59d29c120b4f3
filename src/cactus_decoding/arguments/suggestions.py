"""What a mistyped name probably means."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def suggestion(given: object, known: Iterable[str]) -> str:
    """Return ``; did you mean 'cactus'?`` for a name that is close to a known one, else nothing.

    Example:
        >>> suggestion("cactos", ["lossless", "cactus"]), suggestion("magic", ["lossless", "cactus"])
        ("; did you mean 'cactus'?", '')
    """
    folded = {name.lower(): name for name in known}
    close = get_close_matches(str(given).strip().lower(), folded, n=1, cutoff=0.65)
    return f"; did you mean {folded[close[0]]!r}?" if close else ""
