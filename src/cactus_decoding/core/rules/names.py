"""The names that a rule's spelling may begin with."""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

GROUP = "cactus_decoding.rules"  # the entry points by which installed packages register rules
# names of `verification.declarations.VERIFICATIONS`, which users may take for rules
WAYS_TO_VERIFY = ("token", "block", "hsd", "joint", "recursive", "multipath", "traversal", "coupled", "fly")


def registered_rules() -> tuple[EntryPoint, ...]:
    """Return the rules that installed packages have registered, without importing them."""
    return tuple(entry_points(group=GROUP))


@cache
def name_of(described: type[Any]) -> str:
    """Return the name of a rule's class in the package or in the entry-point group, else its importable path."""
    path = f"{described.__module__}:{described.__qualname__}"
    if described.__module__.startswith("cactus_decoding.") or "<locals>" in path:
        return str(described.name)
    root = described.__module__.partition(".")[0]
    near = (each for each in registered_rules() if each.module.partition(".")[0] == root)
    return next((each.name for each in near if each.value == path or each.load() is described), path)
