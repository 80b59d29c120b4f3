"""Ways to verify a step: what each declares of itself, known without torch; requests are checked from it."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class SchemeDeclaration:
    """What a way to verify needs, and what it excludes.

    Attributes:
        name: as requests spell it.
        summary: what it does, in a line.
        chains: whether it verifies chains.
        trees: whether it verifies trees.
        counterpart: the scheme that does the same, or the nearest, where proposals are of the other kind.
        needs_rows: the rule's relaxed target must not depend on the drafted token.
        max_drawn: most children of a token that may be drawn; None for any number.
        judges_steps: it looks at a step as a whole, so that a relaxed rule needs as many proposals in every step, as
            many children everywhere, and a width that no pace moves.
    """

    name: str
    summary: str
    chains: bool = False
    trees: bool = False
    counterpart: str = ""
    needs_rows: bool = True
    max_drawn: int | None = None
    judges_steps: bool = True


VERIFICATIONS = MappingProxyType(
    {
        each.name: each
        for each in (
            SchemeDeclaration(
                "token", "one proposal after another", chains=True, trees=True, needs_rows=False, judges_steps=False
            ),
            SchemeDeclaration(
                "block",
                "all of a step jointly, which accepts more (for lossless, clamped and ensemble)",
                chains=True,
                counterpart="joint",
            ),
            SchemeDeclaration("joint", "the same for a tree", trees=True, counterpart="block", max_drawn=1),
            SchemeDeclaration(
                "recursive",
                "a tree's children one after another without replacement, to compare",
                trees=True,
                counterpart="token",
                judges_steps=False,
            ),
            SchemeDeclaration(
                "traversal", "a tree's paths from its leaves, to compare", trees=True, counterpart="block"
            ),
        )
    }
)
"""Every way to verify by its name, that of requests which say nothing first."""


def scheme_for(name: str, *, tree: bool) -> str:
    """Return a scheme, or its counterpart where it does not verify proposals of a kind.

    Example:
        >>> scheme_for("joint", tree=False), scheme_for("block", tree=True), scheme_for("token", tree=True)
        ('block', 'joint', 'token')
    """
    scheme = VERIFICATIONS.get(name)
    if scheme is None:  # a request refuses it by name
        return name
    return name if (scheme.trees if tree else scheme.chains) else scheme.counterpart
