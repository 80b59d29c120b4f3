"""What every scheme takes and gives: a judge of positions, random numbers, and the walk that they lead to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

from torch import Tensor

from cactus_decoding.rules.base import Rule
from cactus_decoding.sampling.drawing import draw_one
from cactus_decoding.types import ROOT, AcceptanceRule
from cactus_decoding.verification.trees.tree import Tree


@dataclass(frozen=True)
class Judgement:
    """What judges the children of a node.

    Attributes:
        rule: judges them, by the target's row and the law of the drafted child.
        work_out: gives `relaxed`.
    """

    rule: AcceptanceRule
    work_out: Callable[[], Tensor | None] = lambda: None

    @cached_property
    def relaxed(self) -> Tensor | None:
        """H, ``[vocabulary]`` in float64, where it does not depend on the drafted child; None where it does."""
        return self.work_out()

    @property
    def never_stricter_than_lossless(self) -> bool:
        """Whether it keeps whatever the lossless test keeps with the same number, beside fixed children too."""
        rule = self.rule
        return isinstance(rule, Rule) and rule.never_stricter_than_lossless and not rule.needs_whole_draft_row


Judge = Callable[[int], Judgement]
"""Says of a node that is visited what judges its children; nodes are asked for behind those that lead to them."""


class Chance(Protocol):
    """Where a scheme's randomness comes from."""

    def below(self, node: int, bar: float) -> bool:
        """Say whether a node's uniform number in [0, 1) is strictly below a bar."""
        ...

    def token(self, weights: Tensor) -> int:
        """Return a token in proportion to weights, ``[vocabulary]``."""
        ...


class RandomNumbers:
    """Uniform numbers: one for each node's test, and further ones for the tokens that are drawn, in order.

    Args:
        numbers: in [0, 1), float64 on the CPU; the first ``count`` are the nodes'.
        count: how many nodes there are.
    """

    def __init__(self, numbers: Tensor, count: int) -> None:
        self._numbers, self._next = numbers, count
        self._tests: list[float] = numbers[:count].tolist()

    @staticmethod
    def needed(count: int) -> int:
        """Return how many numbers serve a tree of ``count`` nodes: at most one token is drawn behind each."""
        return 2 * count + 1

    def below(self, node: int, bar: float) -> bool:
        """Compare a node's number."""
        return self._tests[node] < bar

    def token(self, weights: Tensor) -> int:
        """Draw with the next number."""
        uniform = self._numbers[self._next]
        self._next += 1
        return draw_one(weights, uniform)


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
        if (children := tree.children(end)) is not None:
            trials.append(Trial(end, children.nodes[children.drafted], accepted=False))
        return cls(path, next_token, trials)

    def compared_with(self, lossless: Walk) -> list[Trial]:
        """Return the trials with those marked as relaxed that a lossless walk by the same numbers did not pass."""
        kept = set(lossless.path)
        return [trial._replace(relaxed=trial.accepted and trial.node not in kept) for trial in self.trials]


Scheme = Callable[[Tree, Judge, Chance], Walk]
"""A way to verify trees."""


def relaxed_rows(judge: Judge, node: int) -> Tensor:
    """Return h at a node; raise `ValueError` where it depends on the drafted child."""
    judgement = judge(node)
    if judgement.relaxed is None:
        raise ValueError(
            "this verification needs a rule whose relaxed target does not depend on the drafted token, such as "
            f"lossless or clamped, but the rule is {judgement.rule!s}"
        )
    return judgement.relaxed


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
        >>> import torch
        >>> left_over(torch.tensor([0.5, 0.5]), torch.tensor([0.75, 0.25])).tolist()
        [0.0, 0.25]
    """
    return (weights - law).clamp(min=0)
