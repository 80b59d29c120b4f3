"""The exact law of what verification does with trees: every draft and every decision of the package's own schemes.

A scheme asks a `RandomSource` for its random numbers. Here every answer has its turn, so that the probability of each
outcome is a sum of products and nothing is sampled. Children are drawn only when a scheme first looks at them: what
nobody has seen can still be anything.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cactus_decoding.core.divergences.rows import without
from cactus_decoding.core.policy.decide import Policy, PolicyState
from cactus_decoding.core.policy.position import Position
from cactus_decoding.core.rules import Lossless
from cactus_decoding.core.sampling.rows import SparseProbs
from cactus_decoding.core.schemes import VERIFICATIONS
from cactus_decoding.core.types import ROOT, AcceptanceRule, Decision, Proposal, StepRows
from cactus_decoding.core.verification.tree import Scheme, Tree, Walk
from cactus_decoding.core.verification.walk import NodeJudge
from support.decisions import as_given
from support.exact_enumeration import Law, make_rows

TREE_SCHEMES: dict[str, Scheme] = {name: each.function for name, each in VERIFICATIONS.items() if each.trees}
"""What verifies trees, by name."""


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

    def token(self, weights: Tensor, row: SparseProbs | None = None) -> int:
        """Let every token of positive weight be drawn."""
        return self.choose((weights / weights.sum()).tolist())

    def again(self) -> Likeliest:
        """Return what decides whether tokens are relaxed, which no enumerated law depends on."""
        return Likeliest()


class Likeliest:
    def token(self, weights: Tensor, row: SparseProbs | None = None) -> int:
        return int(weights.argmax())

    def again(self) -> Likeliest:
        return self


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


class Children(NamedTuple):
    """What is proposed behind a node: the fixed tokens, then the drawn ones."""

    nodes: list[int]
    token_ids: list[int]
    num_fixed: int


def position_of(kind: type[Position], node: int, children: Children, target: Tensor, draft: Tensor) -> Position:
    """Return the position of a node, of whose step no more is known than its own rows."""
    count = len(children.nodes)
    drawn = [index >= children.num_fixed for index in range(count)]
    proposal = Proposal(children.token_ids, draft[None], [ROOT] * count, drawn)
    rows = StepRows(target.expand(count + 1, -1), children.token_ids, proposal, as_given, as_given)
    position = kind(rows, ROOT)
    assert position.row.probs is not None  # looked at while it is the text's own
    assert position.untempered is not None
    assert position.draft is not None
    position.node, position.nodes = node, children.nodes
    return position


class LazyTree:
    """A tree behind a text whose drawn children are drawn when they are looked at."""

    position: type[Position] = Position
    lazy = False

    def __init__(self, models: Models, text: tuple[int, ...], shape: Shape, choices: Choices, limit: int = 99) -> None:
        self._models, self._text, self._shape, self._choices, self._limit = models, text, shape, choices, limit
        self.parents: list[int] = []
        self.token_ids: list[int] = []
        self._children: dict[int, Children | None] = {}
        self._positions: dict[int, Position | None] = {}

    @property
    def rows(self) -> Any:
        """What visits read of a step: its proposal, which this tree is."""
        return SimpleNamespace(proposal=self)

    def tokens_to(self, node: int) -> list[int]:
        return [] if node == ROOT else [*self.tokens_to(self.parents[node]), self.token_ids[node]]

    def row(self, node: int) -> SparseProbs:
        return SparseProbs(self._models.vocabulary, self._models((*self._text, *self.tokens_to(node)))[0])

    draw_after = Tree.draw_after

    def at(self, node: int) -> Position | None:
        """Return the position behind a node; its drawn children are drawn now."""
        if node not in self._positions:
            children = self.children(node)
            target, draft = self._models((*self._text, *self.tokens_to(node)))
            made = None if children is None else position_of(self.position, node, children, target, draft)
            self._positions[node] = made
        return self._positions[node]

    def leave(self, node: int) -> None:
        del self._positions[node]

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
        nodes = [len(self.parents) + i for i in range(len(tokens))]
        self.parents += [node] * len(tokens)
        self.token_ids += tokens
        return Children(nodes, tokens, num_fixed)

    def draw(self, law: Tensor, draft: Tensor) -> int:
        return self._choices.token(law)


class Step(NamedTuple):
    tokens: tuple[int, ...]
    walk: Walk
    judge: NodeJudge
    probability: float

    @property
    def decisions(self) -> list[Decision]:
        return [visit.decision for visit in self.walk.visits]


def steps(
    scheme: Scheme,
    rule: AcceptanceRule | Policy,
    models: Models,
    text: tuple[int, ...],
    shape: Shape,
    *,
    state: PolicyState | None = None,
    limit: int = 99,
    grow: type[LazyTree] = LazyTree,
) -> Iterator[Step]:
    """Enumerate one step behind a text; ``limit`` is the most proposals that may be kept."""
    policy, choices = rule if isinstance(rule, Policy) else Policy(rule), Choices()
    for _ in choices:
        tree = grow(models, text, shape, choices, limit)
        judge = NodeJudge(policy, state or policy.begin(), tree)
        walk = scheme(tree, judge, choices)
        tokens = (*(tree.token_ids[node] for node in walk.path), walk.next_token)
        yield Step(tokens, walk, judge, choices.probability)


class Responses(NamedTuple):
    """All the responses of an algorithm: their law, and the mean and the largest amount that they spent."""

    law: Law
    mean_spent: float
    most_spent: float


Charge = Callable[[Policy, PolicyState, Step], PolicyState]


def charged(policy: Policy, state: PolicyState, step: Step) -> PolicyState:
    """Return the state after a step, as `walk` does."""
    return policy.end_step(state, step.decisions, step.tokens)


def respond(
    scheme: Scheme,
    rule: AcceptanceRule | Policy,
    models: Models,
    shape: Shape,
    length: int,
    *,
    charge: Charge = charged,
    grow: type[LazyTree] = LazyTree,
) -> Responses:
    """Enumerate the responses of ``length`` tokens: step after step, as many as it takes."""
    policy = rule if isinstance(rule, Policy) else Policy(rule)
    law: Law = defaultdict(float)
    mean = most = 0.0
    unfinished: dict[tuple[tuple[int, ...], PolicyState], float] = {((), policy.begin()): 1.0}
    while unfinished:
        longer: dict[tuple[tuple[int, ...], PolicyState], float] = defaultdict(float)
        for (text, state), chance in unfinished.items():
            given = {"state": state, "limit": length - len(text) - 1, "grow": grow}
            for step in steps(scheme, policy, models, text, shape, **given):
                after, whole = charge(policy, state, step), (*text, *step.tokens)
                if len(whole) == length:
                    law[whole] += chance * step.probability
                    mean += chance * step.probability * after.spent
                    most = max(most, after.spent)
                else:
                    longer[whole, after] += chance * step.probability
        unfinished = longer
    return Responses(dict(law), mean, most)


def product_law(row_of: Callable[[tuple[int, ...]], Tensor], vocabulary: int, length: int) -> Law:
    law: Law = {(): 1.0}
    for _ in range(length):
        law = {
            (*text, token): chance * probability
            for text, chance in law.items()
            for token, probability in enumerate(row_of(text).tolist())
        }
    return law


def lossless_distance(
    scheme: Scheme, models: Models, shape: Shape, length: int, grow: type[LazyTree] = LazyTree
) -> float:
    law = respond(scheme, Lossless(), models, shape, length, grow=grow).law
    return distance(law, product_law(lambda text: models(text)[0], models.vocabulary, length))


def mean_accepted(scheme: Scheme, models: Models, shape: Shape) -> float:
    return sum(step.probability * len(step.walk.path) for step in steps(scheme, Lossless(), models, (), shape))


def divergence(law: Law, expected: Law) -> float:
    return sum(p * math.log(p / expected[tokens]) if expected[tokens] else math.inf for tokens, p in law.items() if p)


def largest_shift(law: Law, expected: Law) -> float:
    """Return the largest difference in the probability of any event: the total variation."""
    return math.fsum(abs(law.get(tokens, 0.0) - expected.get(tokens, 0.0)) for tokens in {*law, *expected}) / 2


def distance(law: Law, expected: Law) -> float:
    """Return the largest difference of two laws at any sequence."""
    return max(abs(law.get(tokens, 0.0) - expected.get(tokens, 0.0)) for tokens in {*law, *expected})
