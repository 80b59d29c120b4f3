"""What budgets promise, on the path of real requests: every outcome of short responses, of many small pairs of models.

An `Instance` is a request and a pair of models. `Request.verifier` decides on its steps, `Verifier.step` walks through
proposals that the package's own trees grow, and every random choice has its turn: nothing is sampled.

In the folder of tests, ``python -m support.promises`` prints how many instances there were, how close the closest came
to its promise, and what broke one.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from cactus_decoding import BestFirstTree, Budget, Request, SamplingParams, StaticTree
from cactus_decoding.core.divergences.rows import normalised, without
from cactus_decoding.core.drafting.suffix_index import SuffixIndex
from cactus_decoding.core.drafting.trees.growing import GrowingTree, grow
from cactus_decoding.core.drafting.trees.shape import TreeShape
from cactus_decoding.core.policy.decide import PolicyState
from cactus_decoding.core.rules import parse_rule
from cactus_decoding.core.rules.base import GreedyRule
from cactus_decoding.core.sampling.params import LARGE_VOCABULARY, SamplingFn
from cactus_decoding.core.sampling.rows import SparseProbs
from cactus_decoding.core.types import ROOT, Outcome, Proposal, StepRows
from cactus_decoding.core.verification.walk import walk
from support.exact_enumeration import Law
from support.rules_under_test import LOSSLESS_LIMITS, SPELLINGS
from support.tree_enumeration import Choices, divergence

ROUNDING = 1e-12
PROMPT = (0, 1, 0)
"""Where the text repeats itself, so that trees with look-ups find something."""

RULES = (
    *(text for text in SPELLINGS if not isinstance(parse_rule(text), GreedyRule) and text not in LOSSLESS_LIMITS),
    # wide enough for what a draft proposes where the target hardly goes, and caps at both ends
    *(f"clamped:width={width}" for width in (3, 8, 12, 100, 500)),
    *(f"clamped:max_kl={cap}" for cap in (1e-6, 1, 5)),
)
SAMPLINGS = (
    SamplingParams(),
    SamplingParams(min_p=1e-4),
    SamplingParams(min_p=0.02),
    SamplingParams(top_k=2),
    SamplingParams(top_k=3, top_p=0.95),
    SamplingParams(top_p=0.8),
    SamplingParams(temperature=0.4),
    SamplingParams(temperature=1.5),
    SamplingParams(temperature=2.0, min_p=0.05),
    SamplingParams(temperature=0),
)
SHAPES = (
    *(StaticTree(static, drawn) for static, drawn in (("1", 0), ("2", 0), ("2", 1), ("3", 1), ("2.2", 1), ("2.1", 1))),
    StaticTree("2.2", drawn=2),
    StaticTree("1.1", lookup=1),
    BestFirstTree(nodes=3, depth=2, width=2),
    BestFirstTree(nodes=4, depth=2, width=3, drawn=0),
    BestFirstTree(nodes=3, depth=2, width=1, lookup=1),
)
VERIFICATIONS = ("token",) * 6 + ("block", "joint", "coupled")
WEIGHTS = (0.0, 1e-310, 1e-9, 1.9e-4, 0.05, 0.1, 0.28, 0.43, 0.6, 1.0, 1.5, 2.0)
"""Of tokens in rows, before they are scaled to sum to 1: what is excluded, subnormal, absurd and likely."""


class StepChoices(Choices):
    """Also gives tokens of rows that list some of them, and says nothing new when a step is walked again."""

    def token(self, weights: Tensor, row: SparseProbs | None = None) -> int:
        place = super().token(weights.double())
        return place if row is None or row.token_ids is None else int(row.token_ids[place])

    def again(self) -> Unread:
        return Unread()


class Unread:
    """The numbers of a walk that only tells which tokens are relaxed, which is not looked at here."""

    def again(self) -> Unread:
        return self

    def below(self, node: int, bar: float) -> bool:
        return False

    def token(self, weights: Tensor, row: SparseProbs | None = None) -> int:
        return 0


@dataclass(frozen=True)
class Instance:
    """A request, and a pair of models whose rows are functions of the text.

    Attributes:
        seed: of the models.
        tokens: how many tokens have any probability.
        length: of a response, in tokens.
        shape: the tree of a step; a number for a chain that is drawn, negative for one that the draft is sure of.
        large: whether the vocabulary is so large that rows are truncated one at a time, and kept sparse.
        cuts_draft: whether the draft's rows are truncated as the target's are.
        first: the weights of both models' tokens after the prompt, in the place of random ones.
    """

    seed: int
    request: Request
    shape: TreeShape | int
    tokens: int = 4
    length: int = 2
    large: bool = False
    cuts_draft: bool = True
    dtype: torch.dtype = torch.float64
    first: tuple[tuple[float, ...], tuple[float, ...]] | None = None

    @property
    def vocabulary(self) -> int:
        return LARGE_VOCABULARY + 1 if self.large else self.tokens


class Pair:
    """Both models of an instance: logits ``[vocabulary]`` after a text, and the rows that tokens are drawn from."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.draft_sampling = instance.request.sampling if instance.cuts_draft else SamplingParams()
        self.target, self.draft = (cache(lambda text, role=role: self._logits(role, text)) for role in range(2))
        self.target_row = cache(lambda text: normalised(self.sampled(self.target(text))))
        self.draft_row = cache(lambda text: self.draft_sampling(self.draft(text)[None])[0])

    def sampled(self, logits: Tensor) -> Tensor:
        return self.instance.request.sampling(logits[None])[0]

    def _logits(self, role: int, text: tuple[int, ...]) -> Tensor:
        instance = self.instance
        numbers = random.Random(f"{instance.seed} {role} {text}")
        weights = [numbers.choice(WEIGHTS) for _ in range(instance.tokens)]
        if len(text) >= len(PROMPT) + instance.length - 1:  # the last token is never judged, so it need not have turns
            weights = [0.0] * instance.tokens
        weights[numbers.randrange(instance.tokens)] = 1.0
        if instance.first and text == PROMPT:
            weights = [*instance.first[role]]
        logits = torch.full((instance.vocabulary,), -math.inf, dtype=torch.float64)
        logits[: instance.tokens] = torch.tensor(weights, dtype=torch.float64).log()
        return logits.to(instance.dtype)


def propose(pair: Pair, text: tuple[int, ...], limit: int, choices: Choices) -> Proposal:
    """Propose a chain or a tree of up to ``limit`` levels; every draw has its turn."""
    shape = pair.instance.shape
    if not limit:
        return Proposal([], None)
    if isinstance(shape, int):
        tokens = list[int]()
        for _ in range(min(abs(shape), limit)):
            row = pair.draft_row((*text, *tokens))
            tokens.append(choices.token(row) if shape > 0 else int(row.argmax()))
        rows = torch.stack([pair.draft_row((*text, *tokens[:i])) for i in range(len(tokens))])
        return Proposal(tokens, rows if shape > 0 else None)

    def read(tree: GrowingTree, nodes: list[int]) -> tuple[Tensor, Tensor]:
        texts = [(*text, *tree.tokens_to(node)) for node in nodes]
        return torch.stack([pair.draft(each) for each in texts]), torch.stack([pair.draft_row(each) for each in texts])

    def choose(logits: Tensor, probs: Tensor, count: int, num_drawn: int, taken: Tensor) -> tuple[Tensor, Tensor]:
        chosen = [
            _children(choices, *each, count, num_drawn) for each in zip(logits, probs, taken.tolist(), strict=True)
        ]
        return torch.tensor([tokens for tokens, _ in chosen]), torch.tensor([drawn for _, drawn in chosen])

    limit = min(limit, shape.max_draft_tokens)
    branches = SuffixIndex(text).continuations(limit) if shape.num_looked_up else []
    return grow(shape, branches, limit, read, choose).proposal()


def _children(
    choices: Choices, logits: Tensor, probs: Tensor, taken: Sequence[int], count: int, num_drawn: int
) -> tuple[list[int], list[bool]]:
    """Do what `choose_children` does for one row, with every outcome of its draws."""
    likeliest = [token for token in logits.argsort(descending=True, stable=True).tolist() if token not in taken]
    count = min(count, len(likeliest))
    tokens = [*taken, *likeliest[: count - num_drawn]]
    drawn = [False] * len(tokens)
    for _ in range(min(num_drawn, count)):
        row = without(probs, torch.tensor(tokens, dtype=torch.long))
        drawn.append(bool(row.sum() > 0))
        tokens.append(choices.token(row) if drawn[-1] else next(each for each in likeliest if each not in tokens))
    return tokens, drawn


class Step(NamedTuple):
    state: PolicyState
    outcome: Outcome
    probability: float


def steps(pair: Pair, text: tuple[int, ...], state: PolicyState | None, limit: int) -> Iterator[Step]:
    """Enumerate a step as `Verifier` takes it; without a state it is the first one."""
    request = pair.instance.request
    verifier = request.verifier(SamplingFn(request.sampling), SamplingFn(SamplingParams()), request.sampling)
    state, choices = state or verifier.begin(text), StepChoices()
    for _ in choices:
        proposal = propose(pair, text, limit, choices)
        texts = [(*text, *proposal.tokens_to(node)) for node in range(ROOT, len(proposal.token_ids))]
        logits = torch.stack([pair.target(each) for each in texts])
        rows = StepRows(logits, [*text, *proposal.token_ids], proposal, verifier.to_probs, verifier.to_untempered)
        after, outcome = walk(verifier.scheme, verifier.policy, state, rows, choices, verifier.sampling)  # type: ignore[arg-type]
        yield Step(after, outcome, choices.probability)


class Kept(NamedTuple):
    """How an instance kept its promise, or did not.

    Attributes:
        kl: KL(responses || the target's), in nats.
        charged: what responses are charged on average.
        most: the largest charge.
        limit: the budget.
        missing: how far the probabilities of all responses are from 1 together.
        exact: whether ``kl`` must be what is charged, because no more than one token was judged in any response.
    """

    kl: float
    charged: float
    most: float
    limit: float
    missing: float
    exact: bool

    @property
    def tightness(self) -> float:
        """The divergence over what was charged for it; 0 where nothing was."""
        return self.kl / self.charged if self.charged > 1e-6 else 0.0

    @property
    def broken(self) -> str:
        """What is wrong, if anything is."""
        slack = ROUNDING * (1 + self.kl)
        if not self.missing <= ROUNDING:
            return "what is emitted is no distribution"
        if not self.kl <= self.charged + slack:
            return "less was charged than was spent"
        if not self.most <= self.limit:
            return "the budget was overspent"
        if self.exact and not self.kl >= self.charged - slack:
            return "more was charged than was spent"
        return ""


def enumerated(instance: Instance) -> Kept:
    """Enumerate all responses of an instance."""
    assert instance.request.budget is not None
    pair, length = Pair(instance), instance.length
    law: Law = defaultdict(float)
    charged = most = 0.0
    judged = 0
    unfinished: dict[tuple[tuple[int, ...], PolicyState | None, int], float] = {((), None, 0): 1.0}
    while unfinished:
        longer = defaultdict[tuple[tuple[int, ...], PolicyState | None, int], float](float)
        for (response, state, seen), chance in unfinished.items():
            for step in steps(pair, (*PROMPT, *response), state, length - len(response) - 1):
                whole, probability = (*response, *step.outcome.all_token_ids), chance * step.probability
                visits = seen + len(step.outcome.visits)
                if len(whole) < length:
                    longer[whole, step.state, visits] += probability
                    continue
                law[whole] += probability
                charged += probability * step.state.spent if step.state.spent else 0.0
                most, judged = max(most, step.state.spent), max(judged, visits)
        unfinished = longer
    expected = {response: _target_probability(pair, response) for response in law}
    exact = judged <= 1
    return Kept(
        divergence(law, expected), charged, most, instance.request.budget.limit, abs(sum(law.values()) - 1), exact
    )


def _target_probability(pair: Pair, response: tuple[int, ...]) -> float:
    rows = [pair.target_row((*PROMPT, *response[:place])) for place in range(len(response))]
    return math.prod(row[token].item() for row, token in zip(rows, response, strict=True))


def instances(count: int, seed: int = 0) -> Iterator[Instance]:
    """Return instances of every kind; requests that the package refuses are left out."""
    numbers = random.Random(seed)
    made = 0
    while made < count:
        shape = numbers.choice((1, -1, 2, *SHAPES, *SHAPES))
        longer, large = numbers.random() < 0.03, numbers.random() < 0.06
        rule, limit = numbers.choice(RULES), 10 ** numbers.uniform(-2, 1.7)
        paced = rule.startswith("clamped:width") and numbers.random() < 0.1
        tree = shape if isinstance(shape, TreeShape) else None
        try:
            request = Request(
                rule,
                Budget(nats=limit, expected_tokens=4 if paced else None),
                sampling=numbers.choice(SAMPLINGS),
                verification=numbers.choice(VERIFICATIONS),
                tree=tree,
                **({} if tree else {"num_speculative_tokens": abs(shape)}),  # type: ignore[arg-type]
            )
        except ValueError:
            continue
        made += 1
        yield Instance(
            seed=numbers.randrange(2**31),
            request=request,
            shape=shape,
            tokens=3 if longer else numbers.randint(3, 5),
            length=3 if longer and not large else 2,
            large=large,
            cuts_draft=numbers.random() < 0.5,
            dtype=numbers.choice((torch.float64, torch.float64, torch.float32)),
        )


class Summary(NamedTuple):
    """What some instances came to.

    Attributes:
        count: how many there were.
        charged: how many of them were charged anything.
        tightest: the largest divergence over what was charged for it; above 1 by rounding at most.
        fullest: the largest charge over its budget.
        broken: what is wrong with which.
    """

    count: int
    charged: int
    tightest: float
    fullest: float
    broken: list[str]

    def __str__(self) -> str:
        said = (
            f"{self.count} instances, {self.charged} of them charged, {len(self.broken)} promises broken; divergence "
            f"over charge at most {self.tightest:.15f}, charge over budget at most {self.fullest:.6f}"
        )
        return "\n".join([said, *self.broken[:20]])


def checked(some: Iterable[Instance]) -> Summary:
    count = charged = 0
    tightest, fullest, broken = 0.0, 0.0, list[str]()
    for instance in some:
        kept = enumerated(instance)
        count, charged = count + 1, charged + (kept.charged > 0)
        tightest, fullest = max(tightest, kept.tightness), max(fullest, kept.most / kept.limit)
        if kept.broken:
            broken.append(f"{kept.broken}: {kept}, {instance!r}")
    return Summary(count, charged, tightest, fullest, broken)


if __name__ == "__main__":
    print(checked(instances(12_000)))
