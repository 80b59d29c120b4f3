"""What a way to verify takes and gives: a step's positions, random numbers, and the walk through them."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from cactus_decoding.core.policy.position import NEEDS_RELAXED_TARGET, Position, target_row
from cactus_decoding.core.rules import Lossless
from cactus_decoding.core.rules.base import row_rule
from cactus_decoding.core.sampling.params import SamplingParams
from cactus_decoding.core.sampling.rows import LazyRows, SparseProbs, draw_one
from cactus_decoding.core.types import ROOT, AcceptanceRule, Decision, Proposal, StepRows, Visit


class Tree:
    """A step's proposal with both models' rows, of which no more is computed than is asked for.

    With ``lazy``, decisions may take rows as they were rounded, and compute no more than they need. Where costs are
    measured this is not allowed, as costs are about the exact distributions that tokens are drawn from.
    """

    def __init__(self, rows: StepRows, sampling: SamplingParams | None = None, *, lazy: bool = False) -> None:
        self.lazy = lazy
        self._lazy: LazyRows | None = None
        if sampling is not None and rows.logits.device.type == "cpu":
            self._lazy = LazyRows(rows.logits.detach(), sampling)
        self.rows = rows
        self._positions: dict[int, Position] = {}

    def at(self, node: int) -> Position | None:
        """Return the position after a proposal, or with -1 after the text; None where nothing is proposed there."""
        if node not in self._positions and node in self.rows.proposal.children:
            self._positions[node] = Position(self.rows, node, self._lazy)
        return self._positions.get(node)

    def leave(self, node: int) -> None:
        """Free what was computed about a position, so that the next one reuses its memory."""
        del self._positions[node]

    def row(self, node: int) -> SparseProbs:
        return target_row(self.rows, node, self._lazy)

    def draw_after(self, node: int, chance: TokenSource) -> int:
        """Draw the token that follows a proposal from the target's row."""
        row = self.row(node)
        return chance.token(row.probs, row)


class TokenSource(Protocol):
    def again(self) -> TokenSource:
        """Return a source of the numbers that are still to come here, so that they can be used twice."""

    def token(self, weights: Tensor, row: SparseProbs | None = None) -> int:
        """Draw a token in proportion to weights, ``[vocabulary]`` or one for each token that a row lists."""


class RandomSource(TokenSource, Protocol):
    def number(self, node: int) -> float: ...

    def below(self, node: int, bar: float) -> bool:
        """Return whether that number is strictly below a bar; nothing is below NaN."""


class RandomNumbers:
    """Uniform numbers: one for each node's test, and further ones for the tokens that are drawn, in order."""

    def __init__(self, numbers: Tensor, count: int) -> None:
        # in [0, 1), float64 on the CPU; the first ``count`` are the nodes'
        self.all, self._next = numbers, count
        self._tests: list[float] = numbers[:count].tolist()

    @classmethod
    def draw(cls, proposal: Proposal, generator: torch.Generator | None, device: torch.device) -> RandomNumbers:
        """Draw as many as a proposal may take: beside siblings the walk may go on after a token that is drawn."""
        count = len(proposal.token_ids)
        needed = count + 1 + (0 if proposal.is_plain_chain else count)
        return cls(torch.rand(needed, dtype=torch.float64, generator=generator, device=device).cpu(), count)

    def again(self) -> RandomNumbers:
        """Return a source of the numbers that are still to come here."""
        return copy.copy(self)

    def number(self, node: int) -> float:
        return self._tests[node]

    def below(self, node: int, bar: float) -> bool:
        return self._tests[node] < bar

    def token(self, weights: Tensor, row: SparseProbs | None = None) -> int:
        uniform = self.all[self._next]
        self._next += 1
        return draw_one(weights, uniform) if row is None else row.draw(weights, uniform)


# decides on a position that is visited; a position is asked about after those that lead to it
Judge = Callable[[Position], Decision]


class Walk(NamedTuple):
    """The path through a tree that was kept, the token drawn after it, and the positions on the way.

    A visit's node is the child that was kept, or the drafted one.
    """

    path: list[int]
    next_token: int
    visits: list[Visit]

    @classmethod
    def along(cls, tree: Tree, judge: Judge, path: list[int], next_token: int) -> Walk:
        """Return the walk along a path whose every child was kept by a test of its own."""
        visits = list[Visit]()
        for at, child in zip([ROOT, *path], [*path, None], strict=True):
            if (position := tree.at(at)) is not None:
                drafted = position.nodes[position.drafted] if child is None else child
                visits.append(Visit(tree.rows, drafted, judge(position), accepted=child is not None))
        return cls(path, next_token, visits)


Scheme = Callable[[Tree, Judge, Any], Walk]  # a way to verify trees; it takes a `TokenSource` or a `RandomSource`
_LOSSLESSLY = Decision(Lossless())


def with_relaxed(walked: Walk, scheme: Scheme, tree: Tree, judge: Judge, chance: TokenSource) -> Walk:
    """Return a walk with its relaxed tokens marked: those that the lossless test at their position would have rejected.

    That is, the same walk by the same numbers does not keep them if their position alone is judged losslessly.
    ``chance`` has the numbers that the walk was made by, none of them taken.
    """

    def is_relaxed(visit: Visit) -> bool:
        if not visit.accepted or isinstance(visit.rule, Lossless):
            return False
        again = scheme(tree, lambda at: _LOSSLESSLY if at.node == visit.parent else judge(at), chance.again())
        return visit.node not in again.path

    return walked._replace(visits=[visit._replace(relaxed=is_relaxed(visit)) for visit in walked.visits])


def check_relaxed_target(rule: AcceptanceRule, how: str) -> None:
    if row_rule(rule) is None:
        raise ValueError(NEEDS_RELAXED_TARGET.format(how=how, rule=rule))


def ratio(numerator: float, denominator: float) -> float:
    """Return a quotient of probabilities; 0 where the denominator is 0, as it is for tokens that are never drawn."""
    return numerator / denominator if denominator > 0 else 0.0


def left_over(weights: Tensor, distribution: Tensor) -> Tensor:
    return (weights - distribution).clamp(min=0)


def recovery_weights(weights: Tensor, target: Tensor) -> Tensor:
    """Return the weights of a recovered token, ``[..., vocabulary]``, or the target where rounding leaves none.

    Every way to verify takes its weights from here, as nothing can be drawn without a positive weight, or in proportion
    to one that is infinite or NaN.
    """
    total = weights.sum(-1, keepdim=True)
    return torch.where((total > 0) & (total < math.inf), weights, target)


def residual(recovery_target: Tensor, draft_probs: Tensor, residual_scale: Tensor) -> Tensor:
    """Return recovery weights in proportion to :math:`(s q - p)_+`, in float64, or q where rounding leaves none.

    q and p are ``[..., vocabulary]``; s is ``[...]``, from 0 to infinity.
    """
    q, s = recovery_target.double(), residual_scale.double().unsqueeze(-1)
    if not residual_scale.ndim and residual_scale <= 1:  # one row: this takes fewer passes over the vocabulary
        weights = (q * s).sub_(draft_probs).clamp_(min=0)
    else:  # dividing p by a large s instead of multiplying q keeps an infinite s meaningful
        weights = (torch.where(s > 1, 1.0, s) * q - draft_probs / s.clamp(min=1.0)).clamp_(min=0)
    return recovery_weights(weights, q)
