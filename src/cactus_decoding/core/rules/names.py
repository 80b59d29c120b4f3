"""What a rule's spelling begins with."""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

GROUP = "cactus_decoding.rules"
"""The entry points by which installed packages register rules."""
WAYS_TO_VERIFY = ("token", "block", "joint", "recursive", "traversal", "fly")
"""Names of `verification.declarations.VERIFICATIONS`, for which a rule may be mistaken."""


def registered_rules() -> tuple[EntryPoint, ...]:
    """Return what installed packages have registered as rules, without importing them."""
    return tuple(entry_points(group=GROUP))


@cache
def name_of(described: type[Any]) -> str:
    """Return the name of a rule's class in the package or in the group of entry points, else its importable path."""
    path = f"{described.__module__}:{described.__qualname__}"
    if described.__module__.startswith("cactus_decoding.") or "<locals>" in path:
        return str(described.name)
    root = described.__module__.partition(".")[0]
    near = (each for each in registered_rules() if each.module.partition(".")[0] == root)
    return next((each.name for each in near if each.value == path or each.load() is described), path)
