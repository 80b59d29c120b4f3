"""What every way to verify takes and gives, and all of them by their names."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from cactus_decoding.policy.position import Position
from cactus_decoding.types import ROOT, AcceptanceRule
from cactus_decoding.verification.tree import Judge, RandomSource, Tree


class Trial(NamedTuple):
    """What became of the children of a node on the way.

    Attributes:
        parent: the node.
        node: the child that was kept, or the drafted one.
        accepted: whether it was kept.
        relaxed: whether it was kept though the lossless test would have rejected it.
        matched: another child that a recovered token was, behind which the walk went on.
    """

    parent: int
    node: int
    accepted: bool
    relaxed: bool = False
    matched: int | None = None


class Walk(NamedTuple):
    """The path through a tree that was kept, the token drawn behind it, and the tests on the way."""

    path: list[int]
    next_token: int
    trials: list[Trial]

    @classmethod
    def along(cls, tree: Tree, path: list[int], next_token: int) -> Walk:
        """Return the walk along a path whose every child was kept by a test of its own."""
        trials = [Trial(parent, node, accepted=True) for parent, node in zip([ROOT, *path], path, strict=False)]
        end = path[-1] if path else ROOT
        if (position := tree.at(end)) is not None:
            trials.append(Trial(end, position.nodes[position.drafted], accepted=False))
        return cls(path, next_token, trials)

    def compared_with(self, lossless: Walk) -> Walk:
        """Return the walk with those marked as relaxed that a lossless walk by the same numbers did not pass."""
        kept = set(lossless.path)
        marked = [trial._replace(relaxed=trial.accepted and trial.node not in kept) for trial in self.trials]
        return self._replace(trials=marked)


Scheme = Callable[[Tree, Judge, RandomSource], Walk]
"""A way to verify trees."""


def relaxed_row(position: Position, rule: AcceptanceRule) -> Tensor:
    """Return h at a position; raise `ValueError` where it depends on the drafted child."""
    relaxed = position.relaxed(rule)
    if relaxed is None:
        raise ValueError(_NEEDS_H.format(how="this verification", rule=rule))
    return relaxed


def check_relaxed_target(rule: AcceptanceRule, how: str) -> None:
    """Raise `ValueError` for a rule whose h depends on the drafted token."""
    row = torch.ones(1, 1)
    if rule.relaxed_target(row, row) is None:
        raise ValueError(_NEEDS_H.format(how=how, rule=rule))


_NEEDS_H = (
    "{how} needs a rule whose relaxed target does not depend on the drafted token, such as lossless or clamped, but "
    "the rule is {rule}"
)


def ratio(numerator: float, denominator: float) -> float:
    """Return a quotient of probabilities; 0 where the denominator is 0, as it is for what is never drawn.

    Example:
        >>> ratio(0.5, 0.25), ratio(0.5, 0.0)
        (2.0, 0.0)
    """
    return numerator / denominator if denominator > 0 else 0.0


def left_over(weights: Tensor, law: Tensor) -> Tensor:
    """Return the positive part of a difference, ``[vocabulary]``.

    Example:
        >>> left_over(torch.tensor([0.5, 0.5]), torch.tensor([0.75, 0.25])).tolist()
        [0.0, 0.25]
    """
    return (weights - law).clamp(min=0)


def residual(recovery_target: Tensor, draft_probs: Tensor, residual_scale: Tensor) -> Tensor:
    r"""Return recovery weights in proportion to :math:`(s q - p)_+`, in float64, or q where rounding leaves none.

    Args:
        recovery_target: q, ``[..., vocabulary]``.
        draft_probs: p, ``[..., vocabulary]``.
        residual_scale: s, ``[...]``, from 0 to infinity.

    Example:
        >>> residual(torch.tensor([0.5, 0.5]), torch.tensor([0.75, 0.25]), torch.tensor(1.0)).tolist()
        [0.0, 0.25]
    """
    q, s = recovery_target.double(), residual_scale.double().unsqueeze(-1)
    if not residual_scale.ndim and residual_scale <= 1:  # one row: in fewer passes over the vocabulary
        weights = (q * s).sub_(draft_probs).clamp_(min=0)
    else:  # dividing p by a large s instead of multiplying q keeps an infinite s meaningful
        weights = (torch.where(s > 1, 1.0, s) * q - draft_probs / s.clamp(min=1.0)).clamp_(min=0)
    return torch.where(weights.sum(-1, keepdim=True) > 0, weights, q)
