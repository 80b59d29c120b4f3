"""Expected accepted tokens of a step with the target's own law, in plain numbers: a second way to what schemes do.

Nodes have some fixed children, the draft's likeliest tokens, and one that is drawn; h is the target's row.
"""

from __future__ import annotations

from support.tree_enumeration import Models, Shape


def children_laws(draft: list[float], num_fixed: int) -> tuple[list[int], list[float]]:
    fixed = sorted(range(len(draft)), key=lambda token: -draft[token])[:num_fixed]
    rest = [0.0 if token in fixed else p for token, p in enumerate(draft)]
    mass = sum(rest)
    return fixed, [p / mass if mass else 0.0 for p in rest]


def by_matching(models: Models, text: tuple[int, ...], shape: Shape, depth: int = 0) -> float:
    """Return what `match` accepts: a token is kept with h(u) if it is fixed, and with min(h, p') if it may be drawn."""
    if depth == len(shape.fixed):
        return 0.0
    target, draft = (row.tolist() for row in models(text))
    fixed, law = children_laws(draft, shape.fixed[depth])
    kept = [h if token in fixed else min(h, p) for token, (h, p) in enumerate(zip(target, law, strict=True))]
    return sum(
        chance * (1 + by_matching(models, (*text, token), shape, depth + 1))
        for token, chance in enumerate(kept)
        if chance > 0
    )


def jointly(models: Models, text: tuple[int, ...], shape: Shape, depth: int = 0, weight: float = 1.0) -> float:
    """Return what `joint` accepts behind a node of some weight."""
    if depth == len(shape.fixed):
        return 0.0
    target, draft = (row.tolist() for row in models(text))
    fixed, law = children_laws(draft, shape.fixed[depth])
    z = 1 - weight + sum(max(weight * h - p, 0.0) for h, p in zip(target, law, strict=True))
    accepted = 0.0
    for drawn, chance in enumerate(law) if sum(law) else [(None, 1.0)]:
        if chance == 0:
            continue
        kept = 0.0 if drawn is None else min(1.0, weight * target[drawn] / chance)
        share = 0.0 if z <= 0 else (1 - kept) / z
        shares = [(token, weight * target[token] * share) for token in fixed]
        left = 1.0
        for token, part in [*shares, *([] if drawn is None else [(drawn, kept)])]:
            if part <= 0 or left <= 0:
                continue
            of_child = min(part / left, 1.0)
            behind = jointly(models, (*text, token), shape, depth + 1, of_child)
            accepted += chance * left * (of_child + behind)
            left -= part
    return accepted
