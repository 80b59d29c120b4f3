"""What a way to verify sees of a step: its positions, and random numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from cactus_decoding.policy.position import Position, target_row
from cactus_decoding.sampling.drawing import draw_one
from cactus_decoding.sampling.params import SamplingParams
from cactus_decoding.sampling.sparse_probs import LazyRows, SparseProbs
from cactus_decoding.types import AcceptanceRule, Proposal, StepRows


class Tree:
    """A step's proposal with both models' rows: no more rows, and no more of a row, than is asked for.

    Args:
        rows: of both models.
        sampling: what makes the target's rows from logits, where it is nothing else: they may then be known in part.
        lazy: whether decisions may take rows as they were rounded, and look no further than they need; where costs are
            measured they are about the laws that tokens are drawn from.
    """

    def __init__(self, rows: StepRows, sampling: SamplingParams | None = None, *, lazy: bool = False) -> None:
        self.lazy = lazy
        on_cpu = sampling is not None and rows.logits.device.type == "cpu"
        self._lazy = LazyRows(rows.logits.detach(), sampling) if on_cpu and sampling is not None else None
        self._rows = rows
        self._positions: dict[int, Position] = {}

    def at(self, node: int) -> Position | None:
        """Return the position behind a proposal, or with -1 behind the text; None where nothing is proposed there."""
        if node not in self._positions and node in self._rows.proposal.children:
            self._positions[node] = Position(self._rows, node, self._lazy)
        return self._positions.get(node)

    def row(self, node: int) -> SparseProbs:
        """Return the target's row there."""
        return target_row(self._rows, node, self._lazy)


class RandomSource(Protocol):
    """Where a scheme's randomness comes from."""

    def number(self, node: int) -> float:
        """Return a node's uniform number in [0, 1)."""
        ...

    def below(self, node: int, bar: float) -> bool:
        """Say whether it is strictly below a bar."""
        ...

    def token(self, weights: Tensor, row: SparseProbs | None = None) -> int:
        """Return a token in proportion to weights, ``[vocabulary]`` or of the tokens that a row lists."""
        ...


class RandomNumbers:
    """Uniform numbers: one for each node's test, and further ones for the tokens that are drawn, in order.

    Args:
        numbers: in [0, 1), float64 on the CPU; the first ``count`` are the nodes'.
        count: how many nodes there are.
    """

    def __init__(self, numbers: Tensor, count: int) -> None:
        self.all, self._next = numbers, count
        self._tests: list[float] = numbers[:count].tolist()

    @classmethod
    def draw(cls, proposal: Proposal, generator: torch.Generator | None, device: torch.device) -> RandomNumbers:
        """Draw as many as a proposal may take: beside siblings the walk may go on behind a token that is drawn."""
        count = len(proposal.token_ids)
        needed = count + 1 + (0 if proposal.is_plain_chain else count)
        return cls(torch.rand(needed, dtype=torch.float64, generator=generator, device=device).cpu(), count)

    def again(self) -> RandomNumbers:
        """Return the same numbers, none of which is used up."""
        return RandomNumbers(self.all, len(self._tests))

    def number(self, node: int) -> float:
        """Return a node's number."""
        return self._tests[node]

    def below(self, node: int, bar: float) -> bool:
        """Compare a node's number; nothing is below NaN."""
        return self._tests[node] < bar

    def token(self, weights: Tensor, row: SparseProbs | None = None) -> int:
        """Draw with the next number."""
        uniform = self.all[self._next]
        self._next += 1
        return draw_one(weights, uniform) if row is None else row.draw(weights, uniform)


Judge = Callable[[Position], AcceptanceRule]
"""Says what judges a position that is visited; positions are asked for behind those that lead to them."""
