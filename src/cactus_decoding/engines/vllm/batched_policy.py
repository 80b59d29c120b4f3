"""`Policy.decide` for all positions of an engine's step at once, in tensors; nothing waits for the device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from cactus_decoding.core.policy.importance import ImportanceWeights
from cactus_decoding.core.policy.phases import Phases
from cactus_decoding.core.policy.protection import may_relax
from cactus_decoding.core.policy.vocabulary import Vocabulary
from cactus_decoding.core.rules.base import Rule
from cactus_decoding.engines.openai.relaxed_logits import probability_from_logits


def append_padding_token(vocabulary: Vocabulary | None) -> Vocabulary:
    """Append a token with an empty text, which stands for all tokens that the vocabulary does not know."""
    known = Vocabulary(()) if vocabulary is None else vocabulary
    return replace(known, texts=(*known.texts, ""))


class FollowedResponse:
    """Follow one response whose request asks for phases, token by token.

    The vocabulary comes from `append_padding_token`: unknown tokens are read as its last one. The engine appends to
    ``output_ids``, with negative numbers for tokens that it does not know yet; they are read again on every call.
    """

    def __init__(
        self, phases: Phases, vocabulary: Vocabulary, prompt_ids: Sequence[int], output_ids: list[int]
    ) -> None:
        self.output_ids = output_ids
        self._phases, self._vocabulary = phases, vocabulary
        self._begin = self._state = phases.begin(self._known(prompt_ids), vocabulary)
        self._num_read = 0

    @property
    def reads_tokens(self) -> bool:
        return self._phases.relax_within is not None

    @property
    def settled(self) -> bool:
        known = min(self._state.num_emitted, len(self.output_ids))
        return not self.reads_tokens and known >= self._phases.lossless_tokens

    def relaxable(self, draft_token_ids: Sequence[int]) -> list[bool]:
        """For each of the next drafted tokens, whether its position may be relaxed."""
        if len(self.output_ids) < self._num_read:  # the engine took tokens back
            self._state, self._num_read = self._begin, 0
        further = self.output_ids[self._num_read :]
        if min(further, default=0) < 0:
            return [False] * len(draft_token_ids)
        self._state = self._phases.after(self._state, self._known(further), self._vocabulary)
        self._num_read += len(further)
        return self._phases.relaxable(self._state, self._known(draft_token_ids), self._vocabulary)

    def _known(self, token_ids: Sequence[int]) -> Sequence[int]:
        if not self._phases.reads_text:
            return token_ids
        silence = len(self._vocabulary.texts) - 1
        return [token if 0 <= token < silence else silence for token in token_ids]


MAX_ELEMENTS = 1 << 25  # of float64 probabilities that are computed at once


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


class Weighed(NamedTuple):
    rows: Tensor  # indices into the step's positions, ``[positions]``
    importance: ImportanceWeights  # in float64 on the device, as long as the target's vocabulary
    limits: Tensor  # a position may be relaxed up to this importance; infinite: not weighed


@dataclass(frozen=True, eq=False)
class Layout:
    groups: list[Group]
    requests: Tensor  # each row's request, an index into ``budgets``, ``[rows]``
    depths: Tensor  # how many drafted tokens of the request precede the row, ``[rows]``
    width: int  # larger than every depth
    budgets: Tensor | None  # in nats, ``[requests]``; infinite: none; None: no request has one
    meter_slots: Tensor  # where the meter keeps what a request has spent, ``[requests]``
    protected: list[Protected] = field(default_factory=list)
    weighed: Weighed | None = None
    relaxable: Tensor | None = None  # rows that the requests' phases let a rule judge, ``[rows]``; all, if None
    reporting: Tensor | None = None  # requests that the meter counts for a report, ``[requests]``; none, if None


class DraftRows(Protocol):
    @property
    def width(self) -> int:
        """The size of the draft's vocabulary, at most the target's."""

    def rows(self, some: Tensor) -> Tensor: ...

    def of_tokens(self, some: Tensor, token_ids: Tensor) -> Tensor: ...


def allowed(
    layout: Layout, logits: Tensor, draft: DraftRows | None, drafted: Tensor, totals: Callable[[], Tensor]
) -> Tensor | None:
    """Return which rows the requests' policies let a rule judge, ``[rows]``; None means all.

    ``drafted``, ``[rows]``, is negative where there is no drafted token; ``totals`` gives each row's logsumexp.
    """
    relaxable, free = layout.relaxable, list[tuple[Tensor, Tensor]]()
    for rows, token_ids, thresholds in layout.protected:
        some = rows.split(max(1, MAX_ELEMENTS // len(token_ids)))
        sums = torch.cat([logits[part.unsqueeze(1), token_ids].double().logsumexp(1) for part in some])
        mass = probability_from_logits(sums, totals()[rows])  # of the protected tokens, ``[positions]``
        free.append((rows, may_relax(mass, thresholds)))
    if layout.weighed is not None:
        rows, importance, limits = layout.weighed
        parts = rows.split(max(1, MAX_ELEMENTS // logits.shape[1]))
        free.append(
            (rows, torch.cat([_importance(logits, part, importance, draft, drafted) for part in parts]) <= limits)
        )
    for rows, here in free:
        before = here.new_ones(len(logits)) if relaxable is None else relaxable
        relaxable = before.index_copy(0, rows, before[rows] & here)
    return relaxable


def _importance(
    logits: Tensor, rows: Tensor, importance: ImportanceWeights, draft: DraftRows | None, drafted: Tensor
) -> Tensor:
    """Return the importance of positions, ``[positions]``; arbitrary in rows without a drafted token."""
    target = logits[rows].softmax(-1, dtype=torch.float64)
    if draft is None:
        return importance(target, None, drafted[rows].long().clamp(min=0))
    probs = draft.rows(rows).double()
    return importance(target, functional.pad(probs, (0, target.shape[1] - probs.shape[1])), None)


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


def admitted(costs: Tensor, spent: Tensor, budgets: Tensor) -> Tensor:
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
