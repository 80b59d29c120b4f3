"""One verification step with some positions relaxed: change the logits, let the engine sample, change them back, count.

A step's rows are the positions at which drafted tokens are verified, of all requests. An engine whose host does not
know which row belongs to which request gives a rule all rows, and says on the device which of them are the rule's. What
`Policy.decide` says of a position is said here of all positions at once, in tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from cactus_decoding.core.policy.protection import may_relax
from cactus_decoding.core.relaxed_logits import (
    PositionCosts,
    RelaxedLogits,
    audited_nats,
    costs_of,
    probability_from_logits,
    relax_greedily,
    relax_rows,
    relax_tokens,
)
from cactus_decoding.core.rules.base import GreedyRule, LiftRule, Rule
from cactus_decoding.engines.vllm.counters import BudgetMeter, DeviceCounters

MAX_ELEMENTS = 1 << 25  # of float64 probabilities that are computed at once
MAX_CACHED = 1 << 19  # the same on a CPU, whose caches hold them


class Group(NamedTuple):
    """The positions of one rule, which recovers from its relaxed target."""

    rule: Rule
    rows: Tensor  # indices into the step's positions, ``[positions]``
    chosen: Tensor | None = None  # which of those are the rule's, ``[positions]``; all of them, if None


class Protected(NamedTuple):
    """The positions whose requests protect the same tokens."""

    rows: Tensor  # indices into the step's positions, ``[positions]``
    token_ids: Tensor  # ``[tokens]``
    thresholds: Tensor  # a position may be relaxed up to this protected probability; infinite: not protected


@dataclass(frozen=True, eq=False)
class Layout:
    groups: list[Group]
    requests: Tensor  # each row's request, an index into ``budgets``, ``[rows]``
    depths: Tensor  # how many drafted tokens of the request precede the row, ``[rows]``
    width: int  # larger than every depth
    budgets: Tensor | None  # in nats, ``[requests]``; infinite: none; None: no request has one
    meter_slots: Tensor  # where the meter keeps what a request has spent, ``[requests]``
    protected: list[Protected] = field(default_factory=list)
    relaxable: Tensor | None = None  # rows that the requests' phases let a rule judge, ``[rows]``; all, if None
    reporting: Tensor | None = None  # requests that the meter counts for a report, ``[requests]``; none, if None


class DraftRows(Protocol):
    @property
    def width(self) -> int:
        """The size of the draft's vocabulary, at most the target's."""

    def rows(self, some: Tensor) -> Tensor: ...

    def of_tokens(self, some: Tensor, token_ids: Tensor) -> Tensor: ...


def allowed(layout: Layout, logits: Tensor, totals: Callable[[], Tensor]) -> Tensor | None:
    """Return which rows the requests' policies let a rule judge, ``[rows]``; None means all.

    ``totals`` gives each row's logsumexp.
    """
    relaxable = layout.relaxable
    for rows, token_ids, thresholds in layout.protected:
        some = rows.split(max(1, MAX_ELEMENTS // len(token_ids)))
        sums = torch.cat([logits[part.unsqueeze(1), token_ids].double().logsumexp(1) for part in some])
        mass = probability_from_logits(sums, totals()[rows])  # of the protected tokens, ``[positions]``
        here = may_relax(mass, thresholds)
        before = here.new_ones(len(logits)) if relaxable is None else relaxable
        relaxable = before.index_copy(0, rows, before[rows] & here)
    return relaxable


def cost(layout: Layout, budgets: Tensor, changes: Iterable[tuple[Tensor, Tensor, Tensor]]) -> Tensor:
    """Return the nats of each request's positions, ``[requests, width]``; 0 where nothing is metered.

    Each change holds a rule's rows, which of them it may relax, and what that costs, ``[positions]`` each.
    """
    table = torch.zeros(len(budgets) * layout.width, dtype=torch.float64, device=budgets.device)
    for rows, relaxed, nats in changes:
        requests, depths = layout.requests[rows], layout.depths[rows]
        metered = relaxed & budgets[requests].isfinite()
        table.index_add_(0, requests * layout.width + depths, torch.where(metered, nats, 0.0))
    return table.view(len(budgets), layout.width)


def afforded(costs: Tensor, spent: Tensor, budgets: Tensor) -> Tensor:
    """Return which positions the budgets pay for, as `core.policy` does for one response at a time.

    Positions are taken in order. A position is passed over, and costs nothing, if the budget cannot afford it, if its
    cost is infinite or NaN, or if the budget is used up. ``costs`` are the nats of each position if it is relaxed,
    ``[requests, positions]`` in float64; budgets are infinite where nothing is metered.
    """
    places = []
    for cost in costs.unbind(1):
        fits = cost.isfinite() & (spent + cost <= budgets) & ((spent < budgets) | budgets.isinf())
        spent = spent + torch.where(fits, cost, 0.0)
        places.append(fits)
    return torch.stack(places, 1)


_MAX_AUDITED = MAX_ELEMENTS // 4  # elements of float64 probabilities that are audited at once


@dataclass(frozen=True, eq=False)
class _Change:
    group: Group
    token_ids: Tensor  # the drafted tokens, 0 in rows that are not the rule's, ``[positions]``
    allowed: Tensor  # the rows that are relaxed, ``[positions]``
    relaxed: RelaxedLogits
    costs: PositionCosts | None = None  # None if nothing needs them
    sample: Tensor | None = None  # indices of positions that are audited for the counters
    protected: Tensor | None = None  # the rows that the policy kept the rule away from, ``[positions]``
    fell_back: Tensor | None = None  # the rows that a budget could not afford, ``[positions]``


class RelaxedStep:
    """A step whose positions are relaxed as their requests ask for.

    No random number is drawn here, and without budgets, audits and root-finding nothing waits for the device.
    ``logits``, ``[rows, vocabulary]``, are those that the target samples from, at temperature 0 those whose greatest it
    takes; ``token_ids``, ``[rows]``, are the drafted tokens, negative where there is none. ``draft`` is None for a
    deterministic draft.
    """

    def __init__(
        self,
        layout: Layout,
        meter: BudgetMeter,
        counters: DeviceCounters | None,
        logits: Tensor,
        token_ids: Tensor,
        draft: DraftRows | None,
    ) -> None:
        self._layout, self._meter, self._counters = layout, meter, counters
        self._logits, self._draft = logits, draft
        self._known_totals: Tensor | None = None
        self._drafted = token_ids >= 0
        self._relaxable = allowed(layout, logits, lambda: self._totals)
        self._changes = [self._change(group, token_ids.long()) for group in layout.groups]
        if counters is not None or layout.budgets is not None or layout.reporting is not None:
            self._changes = [self._with_costs(change) for change in self._changes]
        if layout.budgets is not None:
            costs = [(change.group.rows, change.allowed, _costs(change).emitted) for change in self._changes]
            self._table = cost(layout, layout.budgets, costs)
            self._afforded = afforded(self._table, meter.spent[layout.meter_slots], layout.budgets)
            self._changes = [self._within_budget(change) for change in self._changes]

    def _within_budget(self, change: _Change) -> _Change:
        fits, allowed = self._afforded[self._places(change)], change.allowed
        if isinstance(change.group.rule, GreedyRule):  # where it gives up nothing, it does what lossless does
            fits = fits | (_costs(change).emitted == 0)
        return replace(change, allowed=allowed & fits, fell_back=allowed & ~fits)

    @contextmanager
    def relaxed_logits(self) -> Iterator[None]:
        """Relax the logits while the engine samples from them, and restore them to the last bit."""
        undo = []
        for change in self._changes:
            logits, new, allowed = self._logits, change.relaxed.logits, change.allowed
            where: tuple[Tensor, ...] = (change.group.rows, change.token_ids)
            if new.dim() == 2:
                logits, where, allowed = logits[:, : new.shape[1]], where[:1], allowed.unsqueeze(1)
            before = logits[where]
            undo.append((logits, where, before))
            logits.index_put_(where, torch.where(allowed, new, before))
        try:
            yield
        finally:
            for logits, where, before in reversed(undo):  # groups may have rows in common
                logits.index_put_(where, before)

    def settle(self, num_sampled: Tensor) -> None:
        """Charge and count the visited positions, given how many tokens each request got, ``[requests]``."""
        layout = self._layout
        if layout.budgets is not None:
            depths = torch.arange(layout.width, device=num_sampled.device)
            visited = self._afforded & (depths < num_sampled.unsqueeze(1))
            self._meter.charge(layout.meter_slots, self._table, visited)
        if self._counters is None and layout.reporting is None:
            return
        for change in self._changes:
            requests, depths = self._places(change)
            left = num_sampled[requests] - 1 - depths  # 0 at the rejected position, less after it
            if layout.reporting is not None:
                reported = layout.reporting[requests] & (left >= 0)
                self._meter.counts.index_add_(0, layout.meter_slots[requests], _reported(change, reported, left > 0))
            if self._counters is None:
                continue
            kept = [None if rows is None else rows & (left >= 0) for rows in (change.protected, change.fell_back)]
            left = torch.where(change.allowed, left, -1)
            self._counters.add(change.group.rule, _costs(change), left, change.sample, *kept)

    def _places(self, change: _Change) -> tuple[Tensor, Tensor]:
        return self._layout.requests[change.group.rows], self._layout.depths[change.group.rows]

    @property
    def _totals(self) -> Tensor:
        if self._known_totals is None:
            self._known_totals = self._logits.logsumexp(-1)
        return self._known_totals

    def _change(self, group: Group, token_ids: Tensor) -> _Change:
        rule, rows, chosen = group
        drafted = token_ids[rows]
        allowed = drafted >= 0 if chosen is None else chosen & (drafted >= 0)
        drafted = torch.where(allowed, drafted, 0)
        change = _Change(group, drafted, allowed, self._relaxed(rule, rows, drafted))
        if self._relaxable is None:
            return change
        free = self._relaxable[rows]
        return replace(change, allowed=allowed & free, protected=allowed & ~free)

    def _relaxed(self, rule: Rule, rows: Tensor, token_ids: Tensor) -> RelaxedLogits:
        if isinstance(rule, GreedyRule):
            return self._greedily(rule, rows, token_ids)
        if isinstance(rule, LiftRule) or (self._draft is None and rule.drafted_only):
            return relax_tokens(rule, self._logits[rows, token_ids], self._totals[rows])
        size = self._rows_at_once
        parts = [self._by_row(rule, *part) for part in zip(rows.split(size), token_ids.split(size), strict=True)]
        return parts[0] if len(parts) == 1 else RelaxedLogits(*map(torch.cat, zip(*parts, strict=True)))

    def _greedily(self, rule: GreedyRule, rows: Tensor, token_ids: Tensor) -> RelaxedLogits:
        logits, size = self._logits[:, : self._width], self._rows_at_once
        bound = self._bound(rule, rows, logits)
        parts = [
            relax_greedily(one, logits[rows[part]], token_ids[part]) for one, own in bound for part in own.split(size)
        ]
        in_order = torch.cat([own for _, own in bound]).argsort()
        return RelaxedLogits(*(torch.cat(each)[in_order] for each in zip(*parts, strict=True)))

    def _bound(self, rule: GreedyRule, rows: Tensor, logits: Tensor) -> list[tuple[GreedyRule, Tensor]]:
        """Return what a rule is at some rows, and which these are; where it depends on the place, the host waits."""
        if type(rule).bind_position is GreedyRule.bind_position:
            return [(rule, torch.arange(len(rows), device=rows.device))]
        requests, depths = self._layout.requests, self._layout.depths
        counts = torch.zeros_like(self._layout.meter_slots).index_add_(0, requests, self._drafted.long())
        remaining = (counts[requests] - depths)[rows].clamp(min=1).tolist()
        greatest = logits[rows].amax(1).nan_to_num().tolist()  # numbers, as an exception would end the engine
        bound: dict[GreedyRule, list[int]] = {}
        for place, where in enumerate(zip(remaining, greatest, strict=True)):
            bound.setdefault(rule.bind_position(*where), []).append(place)
        return [(one, torch.tensor(own, device=rows.device)) for one, own in bound.items()]

    @property
    def _width(self) -> int:
        """How many tokens the sampler looks at."""
        return self._logits.shape[1] if self._draft is None else self._draft.width

    @property
    def _rows_at_once(self) -> int:
        elements = MAX_CACHED if self._logits.device.type == "cpu" else MAX_ELEMENTS
        return max(1, elements // self._width)

    def _by_row(self, rule: Rule, rows: Tensor, token_ids: Tensor) -> RelaxedLogits:
        if self._draft is not None:
            return relax_rows(rule, self._logits[rows, : self._draft.width], self._draft.rows(rows), token_ids)
        logits = self._logits[rows]
        token_logits = logits.gather(1, token_ids.unsqueeze(1)).squeeze(1)
        return relax_tokens(rule, token_logits, self._totals[rows], (logits, token_ids))

    def _with_costs(self, change: _Change) -> _Change:
        """Add what a change costs; where that takes an audit, this waits for the device."""
        rows, draft, budgets = change.group.rows, self._draft, self._layout.budgets
        if isinstance(change.group.rule, GreedyRule):  # what is given up is no divergence, and nothing is audited
            costs = costs_of(change.relaxed, None, None)
            return replace(change, costs=replace(costs, conditional=torch.zeros_like(costs.conditional)))
        sample = None if self._counters is None else self._counters.sample(len(rows))
        if draft is None:
            return replace(change, costs=costs_of(change.relaxed, None, None), sample=sample)
        audited = None
        asked = [] if budgets is None else [budgets.isfinite()]
        asked += [] if self._layout.reporting is None else [self._layout.reporting]
        if change.relaxed.logits.dim() == 1 and (asked or sample is not None):
            needed = torch.zeros_like(change.allowed)
            for requests in asked:
                needed |= requests[self._layout.requests[rows]]
            if sample is not None:
                needed[sample] = True
            needed = (needed & change.allowed).nonzero().squeeze(1)
            parts = [
                audited_nats(change.group.rule, self._logits[some, : draft.width], draft.rows(some))
                for some in rows[needed].split(max(1, _MAX_AUDITED // draft.width))
            ]
            audited = needed, torch.cat(parts)
        drafted = draft.of_tokens(rows, change.token_ids).double()
        return replace(change, costs=costs_of(change.relaxed, drafted, audited), sample=sample)


def _costs(change: _Change) -> PositionCosts:
    assert change.costs is not None
    return change.costs


def _reported(change: _Change, visited: Tensor, kept: Tensor) -> Tensor:
    """Return what positions add to their responses' counts, in the order of `REPORTED`, ``[positions, counts]``."""
    costs = _costs(change)
    judged, none = visited & change.allowed, torch.zeros_like(visited)
    accepted = judged & kept
    columns = [
        torch.where(judged, costs.emitted, 0.0),
        judged,
        accepted,
        torch.where(accepted, costs.relaxed, 0.0),
        visited & (none if change.fell_back is None else change.fell_back),
        visited & (none if change.protected is None else change.protected),
    ]
    return torch.stack([column.double() for column in columns], 1)
