"""What every rule accepts, and what it costs, exactly, at the recorded positions of a lossless run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cactus_decoding.core.audit import audit, audit_beside
from cactus_decoding.core.divergences.rows import without
from cactus_decoding.core.files.jsonl import number_of, read_json
from cactus_decoding.core.files.writing import plain_json
from cactus_decoding.core.policy.protection import may_relax
from cactus_decoding.core.policy.relaxation import RelaxationPolicy
from cactus_decoding.core.policy.vocabulary import Vocabulary
from cactus_decoding.core.rules import Lossless, as_rule
from cactus_decoding.core.rules.base import Family
from cactus_decoding.core.types import AcceptanceRule
from cactus_decoding.lab.evaluation.intervals import Interval, ratio_of_sums
from cactus_decoding.lab.evaluation.score import expected_tokens
from cactus_decoding.lab.frontier.recorded_rows import RecordedRows, chunks
from cactus_decoding.lab.frontier.relaxations import EVERYWHERE, Relaxation

SCHEMA, KIND = 1, "frontier"
DEFAULT_MEMORY = 2**29
LOOSEST = "clamped:width=500.0"  # accepts as much as any rule can, at almost the least KL for that
_LOSSLESS = Lossless()


@dataclass(frozen=True)
class Point:
    """A relaxation and its exact effects at the recorded positions; intervals are over problems."""

    relaxation: Relaxation
    family: str
    knob: float | None
    acceptance: Interval
    kl: Interval  # KL(emitted || target), in nats
    tv: Interval
    max_log_ratio: float  # the largest at any position
    tokens_per_step: tuple[Interval, ...]  # expected of 1, 2, … proposals
    kept_by_children: tuple[Interval, ...] = ()  # chance_kept of 1, 2, … children, one of them drawn
    kept_by_fixed_children: tuple[Interval, ...] = ()  # the same with none drawn

    @property
    def rule(self) -> str:
        return self.relaxation.rule

    def as_dict(self) -> dict[str, Any]:
        shown = {name: each for name, each in vars(self).items() if name != "relaxation" and each != ()}
        found: dict[str, Any] = plain_json(shown)
        return self.relaxation.as_dict() | found


class Frontier:
    """Measures rules on recorded rows. Where a policy keeps a rule away, lossless judges, and nothing is spent."""

    def __init__(self, rows: RecordedRows, memory: int = DEFAULT_MEMORY, vocabulary: Vocabulary | None = None) -> None:
        self.rows, self.memory, self.vocabulary = rows, memory, vocabulary
        self._masses: dict[str, Tensor] = {}
        problems = rows.problems
        self._problem_of_proposal = rows.problem[rows.step]
        self._positions = sums_by(rows.visited, self._problem_of_proposal, problems)
        self.steps = sums_by(torch.ones(len(rows.problem)), rows.problem, problems)

    def measure(
        self,
        rule: AcceptanceRule | str,
        family: str = "",
        knob: float | None = None,
        policy: RelaxationPolicy = EVERYWHERE,
        max_children: int = 0,
    ) -> Point:
        """Return the exact effects of a rule where it may relax: nothing is sampled."""
        rule = as_rule(rule)
        rows, problems = self.rows, self.rows.problems
        per_position = torch.zeros(len(rows.drafted), 3, dtype=torch.float64)
        accepted = torch.zeros(len(rows.drafted), dtype=torch.float64)
        largest = -math.inf
        for judge, places, target, draft, drafted in self._judged(rule, policy):
            accepted[places] = chance_of_acceptance(judge, target, draft, drafted)
            visited = rows.visited[places]
            if not visited.any():
                continue
            result = audit(judge, target[visited], draft[visited])
            # rounding takes a divergence of zero to either side of it
            numbers = torch.stack([result.acceptance, result.kl.clamp(min=0), result.tv], dim=-1)
            per_position[places[visited]] = numbers
            largest = max(largest, float(result.max_log_ratio.max()))
        sums = sums_by(per_position[rows.visited], self._problem_of_proposal[rows.visited], problems)
        acceptance, kl, tv = (ratio_of_sums(sums[:, i], self._positions) for i in range(3))
        per_step = expected_tokens(accepted, rows.step, rows.ends)
        tokens = sums_by(per_step, rows.problem, problems)
        lengths = tuple(ratio_of_sums(tokens[:, i], self.steps) for i in range(tokens.shape[1]))
        kept = [self.kept_by_children(rule, policy, max_children, drawn=drawn) for drawn in (True, False)]
        return Point(Relaxation(str(rule), policy), family, knob, acceptance, kl, tv, largest, lengths, *kept)

    def kept_by_children(
        self, rule: AcceptanceRule, policy: RelaxationPolicy, max_children: int, *, drawn: bool
    ) -> tuple[Interval, ...]:
        """Return how often one of 1, 2, … children is kept, per visited position; see `chance_kept`."""
        rows, kept = self.rows, torch.zeros(len(self.rows.drafted), max_children, dtype=torch.float64)
        for judge, places, target, draft, _ in self._judged(rule, policy) if max_children else ():
            visited = rows.visited[places]
            for count in range(1, max_children + 1) if visited.any() else ():
                chance = chance_kept(judge, target[visited], draft[visited], count, drawn=drawn)
                kept[places[visited], count - 1] = chance
        sums = sums_by(kept[rows.visited], self._problem_of_proposal[rows.visited], rows.problems)
        return tuple(ratio_of_sums(sums[:, i], self._positions) for i in range(max_children))

    def relaxable(self, policy: RelaxationPolicy) -> Tensor:
        """Return at which recorded proposals a policy lets a rule relax, ``[proposals]``, as a verifier decides it.

        Recorded rows are exact to float32, except for large vocabularies: there the protected probability may be wrong
        by `MERGED_TAIL`.
        """
        if policy != RelaxationPolicy(policy.protection):
            raise ValueError(f"on recorded rows protection alone can be measured, but the policy is: {policy}")
        protection = policy.protection
        if protection is None:
            return torch.ones(len(self.rows.drafted), dtype=torch.bool)
        if protection.pattern not in self._masses:
            if self.vocabulary is None:
                raise ValueError(f"what the tokens say must be known to protect {protection.pattern}")
            mask = protection.mask(self.vocabulary)
            self._masses[protection.pattern] = self.rows.target.masses(mask.nonzero().squeeze(1))
        return may_relax(self._masses[protection.pattern], protection.threshold)

    def _judged(
        self, rule: AcceptanceRule, policy: RelaxationPolicy
    ) -> Iterator[tuple[AcceptanceRule, Tensor, Tensor, Tensor, Tensor]]:
        """Yield the judge, the places of its proposals, their rows, and the columns of the drafted tokens."""
        rows, relaxable = self.rows, self.relaxable(policy)
        for start, target, draft, drafted in chunks(rows.target, rows.draft, rows.drafted, self.memory):
            may_relax = relaxable[start : start + len(target)]
            for judge, judged in ((rule, may_relax), (_LOSSLESS, ~may_relax)):
                if judged.any():
                    yield judge, start + judged.nonzero().squeeze(1), target[judged], draft[judged], drafted[judged]


def sums_by(values: Tensor, groups: Tensor, count: int) -> Tensor:
    """Return the sum of each group's values in float64, ``[count, ...]`` for values ``[n, ...]`` and groups ``[n]``."""
    return torch.zeros((count, *values.shape[1:]), dtype=torch.float64).index_add_(0, groups.long(), values.double())


def chance_of_acceptance(rule: AcceptanceRule, target: Tensor, draft: Tensor, drafted: Tensor) -> Tensor:
    """Return min(1, h(n) / p(n)) for the drafted tokens, ``[rows]``."""
    relaxed_prob = rule.judge(target, draft, drafted).relaxed_prob
    return (relaxed_prob / draft.gather(-1, drafted).double()).clamp(max=1).squeeze(-1)


def frontier(
    rows: RecordedRows,
    families: Sequence[Family],
    *,
    points: int,
    memory: int = DEFAULT_MEMORY,
    policies: Sequence[RelaxationPolicy] = (EVERYWHERE,),
    vocabulary: Vocabulary | None = None,
    max_children: int = 0,
    report: Callable[[int, str], None] = lambda done, remark: None,
) -> list[Point]:
    measured = Frontier(rows, memory, vocabulary)
    wanted: list[tuple[str, str, float | None, RelaxationPolicy]] = [
        ("lossless", "lossless", None, EVERYWHERE),
        (LOOSEST, "limit", None, EVERYWHERE),
    ]
    for family, policy in product(families, policies):
        wanted += [(family.spell(knob), family.name, knob, policy) for knob in family.knobs(points)]
    results = []
    for done, (rule, name, knob, policy) in enumerate(wanted, start=1):
        results.append(measured.measure(rule, name, knob, policy, max_children))
        report(done, rule)
    return results


def as_result(points: Sequence[Point], rows: RecordedRows, provenance: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "kind": KIND,
        "settings": dict(rows.settings),
        "visited": rows.positions,
        "steps": len(rows.problem),
        "problems": rows.problems,
        "points": [point.as_dict() for point in points],
        "recorded": dict(rows.provenance),
        "provenance": dict(provenance),
    }


def chance_kept(rule: AcceptanceRule, target: Tensor, draft: Tensor, count: int, *, drawn: bool) -> Tensor:
    """Return the probability that `match` keeps one of ``count`` children of a node, ``[rows]``.

    The children are the draft's likeliest tokens. If ``drawn``, the last of them is replaced by one that is drawn from
    the rest of the draft's row. A row with fewer positive entries has fewer children. Target and draft are rows
    ``[rows, vocabulary]`` in float64.
    """
    held = (draft > 0).sum(-1).clamp(max=count - drawn)
    kept = torch.zeros(len(draft), dtype=torch.float64)
    for num_fixed in held.unique().tolist():
        rows = held == num_fixed
        kept[rows] = _kept_beside(rule, target[rows], draft[rows], num_fixed, drawn=drawn)
    return kept


def _kept_beside(rule: AcceptanceRule, target: Tensor, draft: Tensor, num_fixed: int, *, drawn: bool) -> Tensor:
    fixed = draft.topk(num_fixed, dim=-1).indices
    rest = without(draft, fixed) if drawn else torch.zeros_like(draft)
    if num_fixed:  # if nothing is left to draw, the first one is judged
        first = torch.zeros_like(rest).scatter(-1, fixed[:, :1], 1.0)
        rest = torch.where(rest.sum(-1, keepdim=True) > 0, rest, first)
    return audit_beside(rule, target, draft, rest, fixed).acceptance


def read_frontier(path: str | Path) -> dict[str, Any]:
    value = read_json(path)
    if not isinstance(value, dict) or value.get("kind") != KIND:
        raise ValueError(f"{path}: this is not a result of cactus frontier")
    if value.get("schema") != SCHEMA:
        raise ValueError(f"{path}: schema is {value.get('schema')!r}, but this version reads schema {SCHEMA}")
    missing = [name for name in ("settings", "visited", "problems", "points", "provenance") if name not in value]
    if missing:
        raise ValueError(f"{path}: the result of cactus frontier lacks {', '.join(missing)}")
    for number, point in enumerate(value["points"]):
        if not _is_point(point):
            raise ValueError(f"{path}: point {number} is not a point of a frontier")
    if [point["family"] for point in value["points"][:2]] != ["lossless", "limit"]:
        raise ValueError(f"{path}: the first two points must be the lossless one and the limit")
    if "rejections" in value and not _are_rejections(value["rejections"]):
        raise ValueError(f"{path}: its rejections are not those of a frontier")
    return value


def _is_point(point: object) -> bool:
    if not isinstance(point, dict) or not all(isinstance(point.get(name), str) for name in ("rule", "family")):
        return False
    if not isinstance(point.get("protect", ""), str):  # absent where nothing is protected
        return False
    return all(_is_interval(point.get(name)) for name in ("acceptance", "kl", "tv"))


def _are_rejections(found: object) -> bool:
    if not isinstance(found, dict) or not isinstance(found.get("kinds"), list):
        return False
    return _is_interval(found.get("rejected")) and all(map(_is_kind, found["kinds"]))


def _is_kind(share: object) -> bool:
    if not isinstance(share, dict) or not isinstance(share.get("kind"), str):
        return False
    return _is_interval(share.get("drafted")) and _is_interval(share.get("written"))


def _is_interval(value: Any) -> bool:
    try:
        return len([number_of(each) for each in value]) == 3
    except (TypeError, ValueError):
        return False
