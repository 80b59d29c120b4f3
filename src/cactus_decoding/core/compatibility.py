"""Which requests a way to verify excludes."""

from __future__ import annotations

from cactus_decoding.core.drafting.trees.shape import TreeShape
from cactus_decoding.core.types import AcceptanceRule, DraftLength
from cactus_decoding.core.verification.declarations import read_scheme

NEEDS_BLOCKS = (
    "{how} verification of a relaxed rule needs a draft model and a fixed number of proposals, "
    "because the proposals at a position must have the same distribution in every step; use verification='token'"
)


def check_scheme(
    verification: str, rule: AcceptanceRule, length: DraftLength, tree: TreeShape | None, *, limited: bool, paced: bool
) -> None:
    """Raise `ValueError` where the way to verify excludes the proposals, the rule, limits or a pace of a budget."""
    from cactus_decoding.core.rules import Lossless
    from cactus_decoding.core.verification.tree import check_relaxed_target

    (scheme, knobs), what = read_scheme(verification), f"{verification} verification"
    if tree is None and not scheme.chains:
        raise ValueError(
            f"verification={scheme.name!r} is for trees, but num_speculative_tokens is "
            f"{length}: give tree=, such as 'static=4.2.2.1', or use verification='block'"
        )
    if tree is not None and not scheme.trees:
        nearest = f"use verification={scheme.counterpart!r}" + ("" if scheme.lossy else ", which is the same for trees")
        raise ValueError(f"{what} is for chains; {nearest}")
    if scheme.lossy and (limited or not isinstance(rule, Lossless)):
        raise ValueError(
            f"{what} relaxes by itself, and nobody knows what that costs: it takes the lossless rule, no budget and no "
            f"relaxation policy, but the rule is {rule}"
        )
    proposals = length.max_draft_tokens
    if 0 < proposals < knobs.min_proposals:
        raise ValueError(
            f"{what} would overrule nothing: it needs {knobs.min_proposals} proposals in a step, but "
            f"num_speculative_tokens is {proposals}: give at least {knobs.min_proposals}, or a smaller window"
        )
    if scheme.needs_rows:
        check_relaxed_target(rule, what)
    if tree is not None and scheme.max_drawn is not None and tree.max_drawn > scheme.max_drawn:
        raise ValueError(f"{what} takes at most one drawn child a token, but the tree is {tree}")
    if not scheme.judges_steps or isinstance(rule, Lossless):
        return
    if tree is None and not length.fixed:
        raise ValueError(NEEDS_BLOCKS.format(how=verification))
    if tree is not None and not tree.is_even:
        raise ValueError(
            f"{what} of a relaxed rule needs a tree with as many children everywhere, such as static=2.2.2, "
            f"because a position must be judged alike in every step, but it is {tree}"
        )
    if paced:
        raise ValueError(f"{what} cannot pace a budget: the width must be the same in every step")
