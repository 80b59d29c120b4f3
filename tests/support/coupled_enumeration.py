"""Every response of the real loop under shared noise on two tokens, with its probability: nothing is sampled.

Of two tokens the first one is chosen iff E(0) / q(0) <= E(1) / q(1), that is iff E(0) / (E(0) + E(1)) of its place, a
uniform number, is at most q(0) / (q(0) + q(1)). So a response asks for nothing but on which side of some bars these
numbers lie, and `Choices` goes through all answers. What is known of a place stays known: that is how a later step can
depend on what an earlier one drafted there.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from cactus_decoding.core.drafting.model import ModelDrafter
from cactus_decoding.core.loop import decode
from cactus_decoding.core.models.base import BaseCachedModel
from cactus_decoding.core.policy.budget import Budget
from cactus_decoding.core.policy.relaxation import FittedPolicy
from cactus_decoding.core.rules import parse_rule
from cactus_decoding.core.sampling.noise import SharedNoise
from cactus_decoding.core.sampling.rows import SparseProbs
from cactus_decoding.core.types import Drafter, DraftLength
from cactus_decoding.core.verification.walk import Verifier
from support.exact_enumeration import Law
from support.tree_enumeration import Choices, divergence, product_law

Rows = Callable[[tuple[int, ...]], Tensor]
"""The row after a text, without the prompt, ``[2]`` in float64."""
PROMPT = [0]
MEASURED = Budget(nats=math.inf)
"""Costs are measured, and nothing falls back."""


class EnumeratedNoise(SharedNoise):
    """Lets the number of every place lie on either side of every bar that is asked for."""

    def __init__(self, choices: Choices) -> None:
        super().__init__(0)
        self._choices = choices

    def __new__(cls, choices: Choices) -> Self:
        return super().__new__(cls, 0)

    def token(self, weights: Tensor, place: int) -> int:
        first, second = weights.double().tolist()
        if not first + second:
            return len(weights)
        return 0 if self._choices.below(place, first / (first + second)) else 1

    def token_of(self, row: SparseProbs, weights: Tensor, place: int) -> int:
        assert row.token_ids is None
        return self.token(weights, place)

    def tokens(self, weights: Tensor, place: int, count: int) -> list[int]:
        first = self.token(weights, place)
        return [token for token in (first, 1 - first) if token in (0, 1) and weights[token] > 0][:count]


class TableModel(BaseCachedModel):
    """A model whose rows are those of a table."""

    name, vocabulary_size, max_length, stop_token_ids = "table", 2, None, []  # type: ignore[assignment]
    model, device = None, torch.device("cpu")

    def __init__(self, rows: Rows) -> None:
        super().__init__()
        self._rows = rows

    def twin(self) -> TableModel:
        return TableModel(self._rows)

    def _choose_forward(self) -> TableForward:
        return TableForward(self._rows)


class TableForward:
    def __init__(self, rows: Rows) -> None:
        self._rows, self._read = rows, list[int]()

    def append(
        self, token_ids: Tensor, start: int, rows: int, positions: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        self._read = [*self._read[:start], *token_ids.tolist()]
        seen = torch.ones(len(token_ids), len(self._read), dtype=torch.bool).tril(start) if mask is None else mask
        texts = ([self._read[i] for i in each.nonzero().flatten().tolist()] for each in seen[-rows:])
        return torch.stack([self._rows(tuple(text[len(PROMPT) :])) for text in texts]).log()

    def keep(self, length: int, prefix: int, path: list[int]) -> int:
        self._read = [*self._read[:prefix], *(self._read[i] for i in path)]
        return len(self._read)

    def save(self, length: int) -> Any:
        raise NotImplementedError

    def restore(self, saved: Any) -> None:
        raise NotImplementedError


class CoupledResponses(NamedTuple):
    law: Law
    charged: float  # nats, on average
    most_charged: float
    kl: float  # of the response against the target's, in nats


def enumerate_coupled(
    target: Rows,
    draft: Rows,
    rule: str,
    length: Callable[[], DraftLength],
    num_tokens: int,
    *,
    budget: Budget = MEASURED,
    drafter: Callable[[], Drafter] | None = None,
    fitted: FittedPolicy | None = None,
) -> CoupledResponses:
    """Return all responses of so many tokens; each begins with a new draft length and a new drafter."""
    law: Law = defaultdict(float)
    charged = most = 0.0
    choices = Choices()
    for _ in choices:
        proposer = ModelDrafter(TableModel(draft)) if drafter is None else drafter()
        verifier = Verifier(parse_rule(rule), _to_probs, _to_probs, None, budget, "coupled", fitted)
        outcomes = list(
            decode(
                TableModel(target),
                proposer,
                PROMPT,
                verifier,
                _to_probs,
                draft_length=length(),
                max_length=len(PROMPT) + num_tokens,
                stopping_criteria=lambda ids: False,
                generator=EnumeratedNoise(choices),
            )
        )
        tokens = tuple(token for outcome in outcomes for token in outcome.token_ids)
        spent = sum(visit.nats or 0.0 for outcome in outcomes for visit in outcome.visits)
        law[tokens] += choices.probability
        charged += choices.probability * spent
        most = max(most, spent)
    return CoupledResponses(dict(law), charged, most, divergence(law, product_law(target, 2, num_tokens)))


def _to_probs(logits: Tensor, _: object) -> Tensor:
    return logits.softmax(-1)


class Tables:
    """Rows of a target and a draft that depend on the whole text; seed by seed from alike to far apart.

    A tenth of the rows have a zero, as top-k and top-p make them.
    """

    def __init__(self, seed: int, num_tokens: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        apart = float(torch.rand(1, generator=generator)) * 4
        self._rows: dict[tuple[int, ...], tuple[Tensor, Tensor]] = {}
        texts: list[tuple[int, ...]] = [()]
        while texts:
            text = texts.pop()
            logits = torch.randn(2, 2, generator=generator, dtype=torch.float64)
            logits[1] = logits[0] + apart * torch.randn(2, generator=generator, dtype=torch.float64)
            logits[torch.rand(2, 2, generator=generator) < 0.05] = -torch.inf
            target, draft = torch.where(logits.isinf().all(-1, keepdim=True), 0.0, logits).softmax(-1)
            self._rows[text] = target, draft
            if len(text) < num_tokens:
                texts += [(*text, 0), (*text, 1)]

    def target(self, text: tuple[int, ...]) -> Tensor:
        return self._rows[text][0]

    def draft(self, text: tuple[int, ...]) -> Tensor:
        return self._rows[text][1]
