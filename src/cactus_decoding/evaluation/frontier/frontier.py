"""What every rule accepts, and what it costs, exactly, at the recorded positions of a lossless run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cactus_decoding.auditing import audit
from cactus_decoding.evaluation.frontier.packed_rows import chunks
from cactus_decoding.evaluation.frontier.recorded_rows import RecordedRows
from cactus_decoding.evaluation.intervals import Interval, bootstrapped, resampled_sums
from cactus_decoding.files.writing import plain
from cactus_decoding.rules import parse_rule
from cactus_decoding.rules.family import Family
from cactus_decoding.types import AcceptanceRule

DEFAULT_MEMORY = 2**29
LOOSEST = "clamped:width=500.0"
"""Accepts all that any rule may, at (almost) the least KL that this can have."""


@dataclass(frozen=True)
class Point:
    """A rule, and what follows from it at the recorded positions; the intervals are over problems.

    Attributes:
        rule: its spelling.
        family: its family; ``lossless`` and ``limit`` are points of their own.
        knob: the family's parameter.
        acceptance: probability that the proposal is accepted, per visited position.
        kl: KL(emitted || target) in nats, per visited position.
        tv: total variation, per visited position.
        max_log_ratio: the largest log of emitted over target probability at any visited position, in nats.
        tokens_per_step: expected tokens of a step with 1, 2, … proposals, from the recorded steps' beginnings.
    """

    rule: str
    family: str
    knob: float | None
    acceptance: Interval
    kl: Interval
    tv: Interval
    max_log_ratio: float
    tokens_per_step: tuple[Interval, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        found: dict[str, Any] = plain(vars(self))
        return found


class Frontier:
    """Measures rules on recorded rows.

    Args:
        rows: from `record_rows` or `read_rows`.
        memory: bytes that an audit may take.
    """

    def __init__(self, rows: RecordedRows, memory: int = DEFAULT_MEMORY) -> None:
        self.rows, self.memory = rows, memory
        problems = rows.problems
        self._problem_of_proposal = rows.problem[rows.step]
        self._positions = sums_by(rows.visited, self._problem_of_proposal, problems)
        self.steps = sums_by(torch.ones(len(rows.problem)), rows.problem, problems)

    def measure(self, rule: AcceptanceRule | str, family: str = "", knob: float | None = None) -> Point:
        """Return what follows from a rule, exactly: nothing is sampled."""
        rule = parse_rule(rule) if isinstance(rule, str) else rule
        rows, problems = self.rows, self.rows.problems
        per_position = torch.zeros(len(rows.drafted), 3, dtype=torch.float64)
        accepted = torch.zeros(len(rows.drafted), dtype=torch.float64)
        largest = -math.inf
        for start, target, draft, drafted in chunks(rows.target, rows.draft, rows.drafted, self.memory):
            stop = start + len(target)
            accepted[start:stop] = chance_of_acceptance(rule, target, draft, drafted)
            visited = rows.visited[start:stop]
            if not visited.any():
                continue
            result = audit(rule, target[visited], draft[visited])
            places = start + visited.nonzero().squeeze(1)
            # rounding takes a divergence of zero to either side of it
            per_position[places] = torch.stack([result.acceptance, result.kl.clamp(min=0), result.tv], dim=-1)
            largest = max(largest, float(result.max_log_ratio.max()))
        sums = sums_by(per_position[rows.visited], self._problem_of_proposal[rows.visited], problems)
        acceptance, kl, tv = (ratio_of_sums(sums[:, i], self._positions) for i in range(3))
        tokens = self.tokens(accepted)
        lengths = tuple(ratio_of_sums(tokens[:, i], self.steps) for i in range(tokens.shape[1]))
        return Point(str(rule), family, knob, acceptance, kl, tv, largest, lengths)

    def tokens(self, accepted: Tensor) -> Tensor:
        """Return the expected tokens of each problem's steps, for 1, 2, … proposals, ``[problems, proposals]``."""
        per_step = expected_tokens(accepted, self.rows.step, self.rows.ends)
        return sums_by(per_step, self.rows.problem, self.rows.problems)

    def chances(self, rule: AcceptanceRule | str) -> Tensor:
        """Return the probability that each recorded proposal is accepted, were it reached, ``[proposals]``."""
        rule = parse_rule(rule) if isinstance(rule, str) else rule
        rows = self.rows
        parts = chunks(rows.target, rows.draft, rows.drafted, self.memory)
        return torch.cat([chance_of_acceptance(rule, target, draft, drafted) for _, target, draft, drafted in parts])


def sums_by(values: Tensor, groups: Tensor, count: int) -> Tensor:
    """Return the sum of each group's values in float64, ``[count, ...]`` for values ``[n, ...]`` and groups ``[n]``."""
    return torch.zeros((count, *values.shape[1:]), dtype=torch.float64).index_add_(0, groups.long(), values.double())


def ratio_of_sums(above: Tensor, below: Tensor) -> Interval:
    """Return sum over sum, and its interval over problems: the positions of one answer are alike.

    Args:
        above: a sum for each problem, ``[problems]``.
        below: likewise, such as the number of positions.

    Example:
        >>> ratio_of_sums(torch.tensor([1.0, 2.0]), torch.tensor([2.0, 4.0]))  # two problems are too few to tell
        Interval(value=0.5, low=nan, high=nan)
    """
    value = float(above.double().sum() / below.double().sum())
    if not math.isfinite(value):
        return Interval(value, value, value)
    sums = resampled_sums(torch.stack([above, below], dim=1).double().numpy())
    with np.errstate(divide="ignore", invalid="ignore"):
        return bootstrapped(value, sums[:, 0] / sums[:, 1], len(above))


def chance_of_acceptance(rule: AcceptanceRule, target: Tensor, draft: Tensor, drafted: Tensor) -> Tensor:
    """Return min(1, h(n) / p(n)) for the drafted tokens, ``[rows]``."""
    relaxed_prob = rule.judge(target, draft, drafted).relaxed_prob
    return (relaxed_prob / draft.gather(-1, drafted).double()).clamp(max=1).squeeze(-1)


def expected_tokens(accepted: Tensor, step: Tensor, ends: Tensor) -> Tensor:
    r"""Return the expected tokens of each step, given what was drafted, for 1, 2, … proposals, ``[steps, proposals]``.

    .. math:: 1 + \sum_{j \le k} \prod_{i \le j} a_i

    less the last token where an accepted proposal ends the response. Only the proposals were drawn: the draws of the
    acceptance tests are summed over.

    Args:
        accepted: each proposal's chance of acceptance, ``[proposals]``.
        step: the step it belongs to, ascending.
        ends: whether a step's last proposal would end the response, ``[steps]``.

    Example:
        >>> step, ends = torch.tensor([0, 0]), torch.tensor([False])
        >>> expected_tokens(torch.tensor([0.5, 0.5]), step, ends).tolist()
        [[1.5, 1.75]]
    """
    steps = len(ends)
    counts = torch.bincount(step.long(), minlength=steps)
    max_proposals = max(1, int(counts.max()) if steps else 1)
    place = torch.arange(len(step)) - (counts.cumsum(0) - counts)[step]
    chance = torch.zeros(steps, max_proposals, dtype=torch.float64)
    chance[step, place] = accepted.double()
    reached = chance.cumprod(-1)  # 0 behind the step's last proposal
    tokens = 1 + reached.cumsum(-1)
    last = (counts - 1).clamp(min=0)
    over = ends.unsqueeze(1) & (torch.arange(max_proposals) >= last.unsqueeze(1)) & (counts > 0).unsqueeze(1)
    return tokens - torch.where(over, reached.gather(1, last.unsqueeze(1)), 0.0)


def frontier(
    rows: RecordedRows,
    families: Sequence[Family],
    *,
    points: int,
    memory: int = DEFAULT_MEMORY,
    report: Callable[[int, str], None] = lambda done, remark: None,
) -> list[Point]:
    """Return the lossless point, the point where acceptance is as high as it gets, and each family over its range."""
    measured = Frontier(rows, memory)
    wanted: list[tuple[str, str, float | None]] = [("lossless", "lossless", None), (LOOSEST, "limit", None)]
    wanted += [(family.spell(knob), family.name, knob) for family in families for knob in family.knobs(points)]
    results = []
    for done, (rule, name, knob) in enumerate(wanted, start=1):
        results.append(measured.measure(rule, name, knob))
        report(done, rule)
    return results


def as_result(points: Sequence[Point], rows: RecordedRows, provenance: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result file of `cactus frontier`."""
    return {
        "schema": 1,
        "kind": "frontier",
        "settings": dict(rows.settings),
        "visited": rows.positions,
        "steps": len(rows.problem),
        "problems": rows.problems,
        "points": [point.as_dict() for point in points],
        "recorded": dict(rows.provenance),
        "provenance": dict(provenance),
    }
