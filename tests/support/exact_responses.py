"""The exact law of whole responses of a toy Markov pair: every draft, decision and block boundary; no sampling.

The loop is written once more, by its definition; the meter (`admit` and `charge`) and the block test are the
package's own unless a test passes others. Rows depend on the token before alone.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from cactus_decoding.core.audit import audit
from cactus_decoding.core.divergences.rows import kl_of_rows
from cactus_decoding.core.policy.decide import PolicyState
from cactus_decoding.core.rules import parse_rule
from cactus_decoding.core.types import AcceptanceRule
from support.block_tests import prefix_tests
from support.decisions import admit, budget_state, charge
from support.exact_enumeration import Law, fates

Admit = Callable[[list[float], float, float], list[bool]]
Charge = Callable[[PolicyState, list[float], list[bool], int], tuple[PolicyState, list[float]]]


class Pair(NamedTuple):
    """A toy target and draft: row i follows token i, ``[vocabulary, vocabulary]``."""

    target: Tensor
    draft: Tensor


class Judged(NamedTuple):
    """What a rule does after each token: P(accept n), the law of recovery after rejecting n, and its cost."""

    kept: list[list[float]]
    recovery: list[list[list[float]]]
    costs: list[float]


def judged(rule: AcceptanceRule, pair: Pair) -> Judged:
    kept, recovery = fates(rule, pair.target, pair.draft)
    return Judged(kept.tolist(), recovery.tolist(), audit(rule, *pair).kl.clamp(min=0).tolist())


class Outcome(NamedTuple):
    """What one step may do: the tokens it emits, how many it accepted, its probability, and what its positions cost."""

    tokens: tuple[int, ...]
    num_accepted: int
    probability: float
    costs: list[float]
    fell_back: list[bool]


class Responses(NamedTuple):
    """All the responses of an algorithm: their law, and the mean and the largest amount that they spent."""

    law: Law
    mean_spent: float
    most_spent: float


class State(NamedTuple):
    """An unfinished response: its tokens, its budget's state, and how likely it is."""

    tokens: tuple[int, ...]
    budget: PolicyState
    probability: float


def respond(
    rule: AcceptanceRule,
    pair: Pair,
    *,
    proposals: int,
    length: int,
    limit: float = math.inf,
    admit: Admit = admit,
    charge: Charge = charge,
    block: bool = False,
    expected_tokens: int | None = None,
    start: int = 0,
) -> Responses:
    """Enumerate the responses of ``length`` tokens after token ``start``.

    Args:
        rule: the rule that spends.
        pair: target and draft.
        proposals: tokens drafted in every step, fewer where the response is about to end.
        length: tokens of a response.
        limit: the budget in nats.
        admit: decides which positions can be afforded.
        charge: charges those that were visited.
        block: whether proposals are verified jointly.
        expected_tokens: the length over which the budget is spread, if it is.
        start: the token before the first.
    """
    steps_of: dict[str, Steps] = {}
    law: Law = defaultdict(float)
    mean = most = 0.0
    unfinished = [State((), budget_state(rule, limit, expected_tokens), 1.0)]
    while unfinished:
        longer: dict[object, State] = {}
        for tokens, budget, probability in unfinished:
            drafted = min(proposals, length - len(tokens) - 1)
            now = budget.rule
            if str(now) not in steps_of:
                steps_of[str(now)] = (_block_steps if block else _token_steps)(now, pair)
            step = steps_of[str(now)]
            outcomes = step(
                tokens[-1] if tokens else start,
                drafted,
                lambda costs, spent=budget.spent: admit(costs, limit, spent),
            )
            for outcome in outcomes:
                chance = probability * outcome.probability
                if chance == 0:
                    continue
                after, _ = charge(budget, outcome.costs, outcome.fell_back, outcome.num_accepted)
                whole = (*tokens, *outcome.tokens)
                if len(whole) == length:
                    law[whole] += chance
                    mean += chance * after.spent
                    most = max(most, after.spent)
                    continue
                before = longer[whole, after].probability if (whole, after) in longer else 0.0
                longer[whole, after] = State(whole, after, before + chance)
        unfinished = list(longer.values())
    return Responses(dict(law), mean, most)


Steps = Callable[[int, int, Callable[[list[float]], list[bool]]], Iterator[Outcome]]


def _token_steps(rule: AcceptanceRule, pair: Pair) -> Steps:
    relaxed, lossless = judged(rule, pair), judged(parse_rule("lossless"), pair)
    draft, target = pair.draft.tolist(), pair.target.tolist()

    def step(context: int, drafted: int, affords: Callable[[list[float]], list[bool]]) -> Iterator[Outcome]:
        def from_here(prefix: tuple[int, ...], at: int, probability: float, costs: list[float]) -> Iterator[Outcome]:
            if probability == 0:
                return
            if len(prefix) == drafted:  # all kept: the bonus token, which costs nothing
                fell_back = [not fits for fits in affords(costs)]
                for token, chance in enumerate(target[at]):
                    yield Outcome((*prefix, token), drafted, probability * chance, costs, fell_back)
                return
            now = [*costs, relaxed.costs[at]]
            admitted = affords(now)
            here = relaxed if admitted[-1] else lossless
            fell_back = [not fits for fits in admitted]
            for proposed, proposal in enumerate(draft[at]):
                kept = here.kept[at][proposed]
                yield from from_here((*prefix, proposed), proposed, probability * proposal * kept, now)
                for token, chance in enumerate(here.recovery[at][proposed]):
                    whole = probability * proposal * (1 - kept) * chance
                    yield Outcome((*prefix, token), len(prefix), whole, now, fell_back)

        return from_here((), context, 1.0, [])

    return step


def _block_steps(rule: AcceptanceRule, pair: Pair) -> Steps:
    rows = rule.relaxed_target(pair.target, pair.draft)
    assert rows is not None
    costs_at = kl_of_rows(rows, pair.target).clamp(min=0).tolist()
    target = pair.target.tolist()

    def step(context: int, drafted: int, affords: Callable[[list[float]], list[bool]]) -> Iterator[Outcome]:
        for path in itertools.product(range(len(target)), repeat=drafted):
            before = [context, *path]
            proposal = math.prod(pair.draft[a, b].item() for a, b in itertools.pairwise(before))
            if proposal == 0:
                continue
            costs = [costs_at[at] for at in before[:-1]]
            admitted = affords(costs)
            fell_back = [not fits for fits in admitted]
            where = torch.tensor(admitted, dtype=torch.bool).unsqueeze(-1)
            h = torch.where(where, rows[before[:-1]], pair.target[before[:-1]])
            p = pair.draft[before[:-1]]
            for num_accepted, chance, following in block_outcomes(h, p, path, pair.target[before[-1]]):
                for token, weight in enumerate(following.tolist()):
                    emitted = (*path[:num_accepted], token)
                    yield Outcome(emitted, num_accepted, proposal * chance * weight, costs, fell_back)

    return step


def block_outcomes(
    rows: Tensor, draft: Tensor, path: tuple[int, ...], bonus: Tensor
) -> Iterator[tuple[int, float, Tensor]]:
    """Yield each number of accepted tokens of a drafted path, its probability, and the law of the next token."""
    width = len(path)
    weights, passes = prefix_tests(
        rows.unsqueeze(0), draft.unsqueeze(0), torch.tensor([path], dtype=torch.long), torch.tensor([width])
    )
    longer_fail = 1.0
    for accepted in range(width, -1, -1):
        passed = passes[0, accepted - 1].item() if accepted else 1.0
        if accepted == width:
            following = bonus
        else:
            following = (weights[0, accepted] * rows[accepted] - draft[accepted]).clamp(min=0)
            following = following / following.sum() if following.sum() > 0 else rows[accepted]
        yield accepted, longer_fail * passed, following
        longer_fail *= 1 - passed


def target_law(pair: Pair, length: int, start: int = 0) -> Law:
    """Return the law of the target's own responses."""
    return {
        tokens: math.prod(pair.target[a, b].item() for a, b in itertools.pairwise((start, *tokens)))
        for tokens in itertools.product(range(len(pair.target)), repeat=length)
    }


def kl_of_laws(law: Law, other: Law) -> float:
    """Return KL(law || other) in nats."""
    terms = (0.0 if p == 0 else math.inf if other[x] == 0 else p * math.log(p / other[x]) for x, p in law.items())
    return math.fsum(terms)


def largest_shift(law: Law, other: Law) -> float:
    """Return the largest difference in the probability of any event: the total variation."""
    return math.fsum(abs(law.get(x, 0.0) - other.get(x, 0.0)) for x in law.keys() | other.keys()) / 2
