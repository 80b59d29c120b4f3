"""The exact law of what verification does with trees: every draft and every decision of the package's own schemes.

A scheme asks a `Chance` for its random numbers. Here every answer has its turn, so that the probability of each outcome
is a sum of products and nothing is sampled. Children are drawn only when a scheme first looks at them: what nobody has
seen can still be anything.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from cactus_decoding.budgets.metering import BudgetState
from cactus_decoding.divergences.rows import without
from cactus_decoding.types import ROOT, AcceptanceRule
from cactus_decoding.verification.trees.judging import NodeJudge
from cactus_decoding.verification.trees.law import Law as TokenLaw
from cactus_decoding.verification.trees.tree import Children
from cactus_decoding.verification.trees.walk import Scheme, Walk
from support.exact_enumeration import Law, make_rows


class Choices:
    """Goes through every sequence of choices; those of probability 0 are left out."""

    def __init__(self) -> None:
        self._script: list[list[tuple[int, float]]] = []  # at each place the choices left, the current one last
        self._place = 0
        self._known: dict[int, tuple[float, float]] = {}  # where the numbers of nodes lie
        self.probability = 1.0

    def __iter__(self) -> Iterator[None]:
        while True:
            self._place, self.probability, self._known = 0, 1.0, {}
            yield
            while self._script and len(self._script[-1]) == 1:
                self._script.pop()
            if not self._script:
                return
            self._script[-1].pop()

    def choose(self, probabilities: Sequence[float]) -> int:
        """Return one of the places of positive probability."""
        if self._place == len(self._script):
            self._script.append([(i, p) for i, p in reversed(list(enumerate(probabilities))) if p > 0])
        choice, probability = self._script[self._place][-1]
        self._place += 1
        self.probability *= probability
        return choice

    def below(self, node: int, bar: float) -> bool:
        """Let the node's number lie on either side of the bar, within what is known of it already."""
        low, high = self._known.get(node, (0.0, 1.0))
        middle = min(max(bar, low), high)
        is_below = self.choose([(high - middle) / (high - low), (middle - low) / (high - low)]) == 1
        self._known[node] = (low, middle) if is_below else (middle, high)
        return is_below

    def token(self, weights: Tensor) -> int:
        """Let every token of positive weight be drawn."""
        return self.choose((weights / weights.sum()).tolist())


class Models:
    """A target and a draft whose rows depend on the whole text; some rows have zeros, some are nearly one-hot."""

    def __init__(self, vocabulary: int, seed: int, temperature: float = 2.0) -> None:
        self.vocabulary, self._seed, self._temperature = vocabulary, seed, temperature
        self._rows: dict[tuple[int, ...], tuple[Tensor, Tensor]] = {}

    def __call__(self, text: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        if text not in self._rows:
            number = self._seed
            for token in text:
                number = (number * (self.vocabulary + 1) + token + 1) % (2**31)
            target, draft = (rows[0] ** (1 / self._temperature) for rows in make_rows(self.vocabulary, 1, number))
            self._rows[text] = target / target.sum(), draft / draft.sum()
        return self._rows[text]


class Shape(NamedTuple):
    """How many children a node of each depth has, fixed and drawn."""

    fixed: tuple[int, ...]
    drawn: tuple[int, ...]
    by_row: bool = False
    """Whether a node grows only where the draft's row has no token above 0.9: a function of the text."""

    def at(self, depth: int, draft: Tensor) -> tuple[int, int]:
        if depth >= len(self.fixed) or (self.by_row and depth and draft.max() > 0.9):
            return 0, 0
        return self.fixed[depth], self.drawn[depth]


def uniform_shape(depth: int, fixed: int, drawn: int) -> Shape:
    return Shape((fixed,) * depth, (drawn,) * depth)


class LazyTree:
    """A tree behind a text whose drawn children are drawn when they are looked at."""

    def __init__(self, models: Models, text: tuple[int, ...], shape: Shape, choices: Choices, limit: int = 99) -> None:
        self._models, self._text, self._shape, self._choices, self._limit = models, text, shape, choices, limit
        self._parents: list[int] = []
        self.token_ids: list[int] = []
        self._children: dict[int, Children | None] = {}

    def tokens_to(self, node: int) -> list[int]:
        return [] if node == ROOT else [*self.tokens_to(self._parents[node]), self.token_ids[node]]

    def parent(self, node: int) -> int:
        return self._parents[node]

    def target(self, node: int) -> TokenLaw:
        return TokenLaw(self.untempered(node))

    def untempered(self, node: int) -> Tensor:
        return self._models((*self._text, *self.tokens_to(node)))[0]

    def children(self, node: int) -> Children | None:
        if node not in self._children:
            self._children[node] = self._grow(node)
        return self._children[node]

    def _grow(self, node: int) -> Children | None:
        before = self.tokens_to(node)
        draft = self._models((*self._text, *before))[1]
        num_fixed, num_drawn = self._shape.at(len(before), draft) if len(before) < self._limit else (0, 0)
        tokens = draft.topk(min(num_fixed, len(draft))).indices.tolist()
        num_fixed = len(tokens)
        for _ in range(num_drawn):
            law = without(draft, torch.tensor(tokens, dtype=torch.long))
            if law.sum() > 0:
                tokens.append(self.draw(law, draft))
        if not tokens:
            return None
        nodes = [len(self._parents) + i for i in range(len(tokens))]
        self._parents += [node] * len(tokens)
        self.token_ids += tokens
        return Children(nodes, tokens, num_fixed, self._models.vocabulary, TokenLaw(draft))

    def draw(self, law: Tensor, draft: Tensor) -> int:
        return self._choices.token(law)


class Step(NamedTuple):
    """What one step may do."""

    tokens: tuple[int, ...]
    walk: Walk
    judge: NodeJudge
    probability: float


def steps(
    scheme: Scheme,
    rule: AcceptanceRule,
    models: Models,
    text: tuple[int, ...],
    shape: Shape,
    *,
    state: BudgetState | None = None,
    metered: bool = False,
    limit: int = 99,
    grow: type[LazyTree] = LazyTree,
) -> Iterator[Step]:
    """Enumerate one step behind a text; ``limit`` is the most proposals that may be kept."""
    choices = Choices()
    for _ in choices:
        tree = grow(models, text, shape, choices, limit)
        judge = NodeJudge(tree, rule, state or BudgetState(), metered=metered)
        walk = scheme(tree, judge, choices)
        tokens = (*(tree.token_ids[node] for node in walk.path), walk.next_token)
        yield Step(tokens, walk, judge, choices.probability)


class Responses(NamedTuple):
    """All the responses of an algorithm: their law, and the mean and the largest amount that they spent."""

    law: Law
    mean_spent: float
    most_spent: float


def respond(
    scheme: Scheme,
    rule: AcceptanceRule,
    models: Models,
    shape: Shape,
    length: int,
    *,
    budget: float | None = None,
    charge: Callable[[Step, float], float] | None = None,
    grow: type[LazyTree] = LazyTree,
) -> Responses:
    """Enumerate the responses of ``length`` tokens: step after step, as many as it takes."""
    law: Law = defaultdict(float)
    mean = most = 0.0
    unfinished: dict[tuple[tuple[int, ...], float], float] = {((), 0.0): 1.0}
    while unfinished:
        longer: dict[tuple[tuple[int, ...], float], float] = defaultdict(float)
        for (text, spent), chance in unfinished.items():
            state = BudgetState(math.inf if budget is None else budget, spent)
            given = {"state": state, "metered": budget is not None, "limit": length - len(text) - 1, "grow": grow}
            for step in steps(scheme, rule, models, text, shape, **given):
                after = spent if budget is None else (charge or charged)(step, spent)
                whole = (*text, *step.tokens)
                if len(whole) == length:
                    law[whole] += chance * step.probability
                    mean += chance * step.probability * after
                    most = max(most, after)
                else:
                    longer[whole, after] += chance * step.probability
        unfinished = longer
    return Responses(dict(law), mean, most)


def charged(step: Step, spent: float) -> float:
    """Return what the response has spent after a step."""
    return step.judge.records[step.walk.trials[-1].parent].spent if step.walk.trials else spent


def forgetful(step: Step, spent: float) -> float:
    """Charge wrongly: forget the node behind which nothing was kept."""
    kept = [trial for trial in step.walk.trials if trial.accepted or trial.matched is not None]
    return step.judge.records[kept[-1].parent].spent if kept else spent


def product_law(row_of: Callable[[tuple[int, ...]], Tensor], vocabulary: int, length: int) -> Law:
    """Return the law of ``length`` tokens that are drawn one after another."""
    law: Law = {(): 1.0}
    for _ in range(length):
        law = {
            (*text, token): chance * probability
            for text, chance in law.items()
            for token, probability in enumerate(row_of(text).tolist())
        }
    return law


def divergence(law: Law, expected: Law) -> float:
    """Return KL(law || expected) in nats."""
    return sum(p * math.log(p / expected[tokens]) if expected[tokens] else math.inf for tokens, p in law.items() if p)


def distance(law: Law, expected: Law) -> float:
    """Return the largest difference of two laws at any sequence."""
    return max(abs(law.get(tokens, 0.0) - expected.get(tokens, 0.0)) for tokens in {*law, *expected})
