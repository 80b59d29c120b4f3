"""How many texts stay read, as a number of them or as the memory that they may take."""

from __future__ import annotations

import re
import sys

from cactus_decoding.core.mistakes import check_integer, shown

_UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def kept_limits(value: int | str) -> tuple[int, int | None]:
    """Return how many texts stay read, and in how many bytes their copies have room, if these are limited.

    Raises:
        TypeError: for what is neither a number nor text.
        ValueError: for a number below 0, or text that is neither a number nor a size.

    Example:
        >>> kept_limits(4), kept_limits("4"), kept_limits("1.5 GiB")[1]
        ((4, None), (4, None), 1610612736)
    """
    if not isinstance(value, str):
        return check_integer("kept_prompts", value, 0), None
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(B|KiB|MiB|GiB)?\s*", value)
    if found is None or (found[2] is None and "." in found[1]):
        raise ValueError(f"kept_prompts must be a number of texts or a size such as 2GiB, but is {shown(value)}")
    if found[2] is None:
        return int(found[1]), None
    return sys.maxsize, int(float(found[1]) * _UNITS[found[2]])
