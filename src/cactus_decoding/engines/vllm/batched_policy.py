"""`Policy.decide` for all positions of an engine's step at once, in three functions of tensors.

Which positions may be relaxed (`allowed`), what each would cost (`cost`), and which of them budgets pay for
(`admitted`). No random number is drawn here, and nothing waits for the device.
"""

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


def with_silence(vocabulary: Vocabulary | None) -> Vocabulary:
    """Return a vocabulary with one more token, which says nothing; that token alone, if there is none."""
    known = Vocabulary(()) if vocabulary is None else vocabulary
    return replace(known, texts=(*known.texts, ""))


class FollowedResponse:
    """One response whose request asks for phases, followed token by token.

    Its vocabulary is as `with_silence` returns it: all tokens that it does not know are its last one. The engine adds
    to ``output_ids``, negative where it does not know them yet, and they are read whenever somebody asks.

    Example:
        >>> words = with_silence(Vocabulary(("<t>", "</t>", "x")))
        >>> response = FollowedResponse(Phases(relax_within=("<t>", "</t>")), words, [0], output_ids := [])
        >>> output_ids += [2, 2]
        >>> response.relaxable([2, 1, -1])
        [True, True, False]
        >>> output_ids += [-1]
        >>> response.relaxable([2, 1, -1])
        [False, False, False]
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
        """Whether it matters which the tokens are, and not only how many."""
        return self._phases.relax_within is not None

    @property
    def settled(self) -> bool:
        """Whether every further position may be relaxed."""
        known = min(self._state.num_emitted, len(self.output_ids))
        return not self.reads_tokens and known >= self._phases.lossless_tokens

    def relaxable(self, draft_token_ids: Sequence[int]) -> list[bool]:
        """Say of each of the tokens drafted next whether the position it stands at may be relaxed.

        Nothing may be where the engine does not know what stands before.
        """
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


MAX_ELEMENTS = 1 << 25
"""Elements of float64 rows that are worked on at once."""


class Group(NamedTuple):
    """The rows of one rule.

    Attributes:
        rule: it recovers from its relaxed target.
        rows: which of the step's, ``[positions]``.
        chosen: which of those are the rule's, ``[positions]``; all, if None.
    """

    rule: Rule
    rows: Tensor
    chosen: Tensor | None = None


class Protected(NamedTuple):
    """The rows whose requests protect the same tokens.

    Attributes:
        rows: which of the step's, ``[positions]``.
        token_ids: the protected tokens, ``[tokens]``.
        thresholds: the largest probability of these at which a row may be relaxed, ``[positions]``; infinite in a row
            whose request does not protect them.
    """

    rows: Tensor
    token_ids: Tensor
    thresholds: Tensor


class Weighed(NamedTuple):
    """The rows whose requests weigh positions by learned importance.

    Attributes:
        rows: which of the step's, ``[positions]``.
        importance: of the server's pair, in float64 on the device, and as long as the target's rows.
        limits: the greatest importance at which a row may be relaxed, ``[positions]``; infinite in a row whose request
            weighs nothing.
    """

    rows: Tensor
    importance: ImportanceWeights
    limits: Tensor


@dataclass(frozen=True, eq=False)
class Layout:
    """Where the rows of a step are.

    Attributes:
        groups: of the rules in the step.
        requests: each row's request, an index into ``budgets``, ``[rows]``.
        depths: how many drafted tokens of the request precede it, ``[rows]``.
        width: larger than every depth.
        budgets: in nats, ``[requests]``; infinite without one. None if no request has one.
        meter_slots: where the meter keeps what a request has spent, ``[requests]``; anything without a budget.
        protected: of the sets of tokens that are protected in the step.
        weighed: of learned importance; None if no request asks for it.
        relaxable: which rows their requests' phases let a rule judge, ``[rows]``; all, if None.
        reporting: which requests the meter counts for a report, ``[requests]``; none, if None.
    """

    groups: list[Group]
    requests: Tensor
    depths: Tensor
    width: int
    budgets: Tensor | None
    meter_slots: Tensor
    protected: list[Protected] = field(default_factory=list)
    weighed: Weighed | None = None
    relaxable: Tensor | None = None
    reporting: Tensor | None = None


class DraftRows(Protocol):
    """What the draft drew its tokens from."""

    @property
    def width(self) -> int:
        """Of its vocabulary; no larger than the target's."""
        ...

    def rows(self, some: Tensor) -> Tensor:
        """Return its probabilities in some rows of the step, ``[positions, width]``."""
        ...

    def of_tokens(self, some: Tensor, token_ids: Tensor) -> Tensor:
        """Return what these give one token each, ``[positions]``."""
        ...


def allowed(
    layout: Layout, logits: Tensor, draft: DraftRows | None, drafted: Tensor, totals: Callable[[], Tensor]
) -> Tensor | None:
    """Return which rows their requests' policies let a rule judge, ``[rows]``; all, if None.

    Drafted tokens, ``[rows]``, are negative where there is none; ``totals`` gives the logsumexp of each row.
    """
    relaxable, free = layout.relaxable, list[tuple[Tensor, Tensor]]()
    for rows, token_ids, thresholds in layout.protected:
        some = rows.split(max(1, MAX_ELEMENTS // len(token_ids)))
        mass = torch.cat([_mass(logits, part, token_ids, totals()) for part in some])
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


def _mass(logits: Tensor, rows: Tensor, token_ids: Tensor, totals: Tensor) -> Tensor:
    """Return what the target gives some tokens together, ``[positions]``."""
    return probability_from_logits(logits[rows.unsqueeze(1), token_ids].double().logsumexp(1), totals[rows])


def _importance(
    logits: Tensor, rows: Tensor, importance: ImportanceWeights, draft: DraftRows | None, drafted: Tensor
) -> Tensor:
    """Return the importance of positions, ``[positions]``; of rows without a drafted token, anything."""
    target = logits[rows].softmax(-1, dtype=torch.float64)
    if draft is None:
        return importance(target, None, drafted[rows].long().clamp(min=0))
    probs = draft.rows(rows).double()
    return importance(target, functional.pad(probs, (0, target.shape[1] - probs.shape[1])), None)


def cost(layout: Layout, budgets: Tensor, changes: Iterable[tuple[Tensor, Tensor, Tensor]]) -> Tensor:
    """Return the nats of each request's positions, ``[requests, width]``; 0 where nothing is metered.

    Of each rule there are its rows, which of them it may relax, and what that costs, ``[positions]`` each.
    """
    table = torch.zeros(len(budgets) * layout.width, dtype=torch.float64, device=budgets.device)
    for rows, relaxed, nats in changes:
        requests, depths = layout.requests[rows], layout.depths[rows]
        metered = relaxed & budgets[requests].isfinite()
        table.index_add_(0, requests * layout.width + depths, torch.where(metered, nats, 0.0))
    return table.view(len(budgets), layout.width)


def admitted(costs: Tensor, spent: Tensor, budgets: Tensor) -> Tensor:
    """Return which positions the budgets pay for: `core.policy` admits the same, one response at a time.

    Positions are taken in order. One that cannot be afforded is passed over and costs nothing; so is one of unknown
    cost, infinite or NaN, and so is every position once the budget is used up. Nothing waits for the device.

    Costs are nats of each position if it is relaxed, ``[requests, positions]`` in float64; budgets are infinite where
    nothing is metered.

    Example:
        >>> one = torch.tensor([1.0])
        >>> admitted(torch.tensor([[0.25, 0.75, 0.5]]), 0.25 * one, one)
        tensor([[ True, False,  True]])
    """
    places = []
    for cost in costs.unbind(1):
        fits = cost.isfinite() & (spent + cost <= budgets) & ((spent < budgets) | budgets.isinf())
        spent = spent + torch.where(fits, cost, 0.0)
        places.append(fits)
    return torch.stack(places, 1)
