"""What a mistyped name probably means."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def suggestion(given: object, known: Iterable[str], *, cutoff: float = 0.65) -> str:
    """Return ``; did you mean 'cactus'?`` for a name that is close to a known one, else nothing.

    Args:
        given: the name.
        known: what it may mean.
        cutoff: how close is close, from 0 to 1 for the same: more where the name may be meant for somebody else.

    Example:
        >>> suggestion("cactos", ["lossless", "cactus"]), suggestion("magic", ["lossless", "cactus"])
        ("; did you mean 'cactus'?", '')
    """
    folded = {name.lower(): name for name in known}
    close = get_close_matches(str(given).strip().lower(), folded, n=1, cutoff=cutoff)
    return f"; did you mean {folded[close[0]]!r}?" if close else ""
