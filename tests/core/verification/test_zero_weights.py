"""Where rounding leaves a recovered token no weights, it is drawn from the target, in every way to verify."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from support.decisions import as_given
from support.tables import all_of
from torch import Tensor

from cactus_decoding.core.policy.position import Distribution, Position
from cactus_decoding.core.rules import parse_rule
from cactus_decoding.core.sampling.rows import draw, draw_one
from cactus_decoding.core.schemes import VERIFICATIONS, FlyKnobs
from cactus_decoding.core.types import AcceptanceRule, Decision, Proposal, StepRows
from cactus_decoding.core.verification import batched
from cactus_decoding.core.verification.tree import RandomNumbers, Scheme, Tree, left_over, recovery_weights

LAST = 1 - 2**-53
"""The greatest uniform number: by it alone a test fails whose probability of passing is 1 but for rounding."""
EVERY = {
    name: partial(each.function, knobs=FlyKnobs(), greedy=False) if each.lossy else each.function
    for name, each in VERIFICATIONS.items()
    if name != "coupled"  # which recovers nothing: every token is drawn from h itself
}
CHAINS = {name: scheme for name, scheme in EVERY.items() if VERIFICATIONS[name].chains}
TREES = {name: scheme for name, scheme in EVERY.items() if VERIFICATIONS[name].trees}
RULES = ("lossless", "clamped:width=20", "ensemble:weight=0.5")
UNIFORMS = [(i + 0.5) / 43 for i in range(43)]  # none where two tokens meet


def rows_without_rest(vocabulary: int = 6) -> tuple[Tensor, Tensor]:
    """Return a target's and a draft's row, the former a step of float64 less likely everywhere; both lack token 0.

    The draft may draw token 5, though it never does, and the target excludes it. Rows sum to 1 but for rounding, so
    that nobody divides them.
    """
    draft = torch.tensor([0.0, 0.1, 0.2, 0.3, 0.4, 1e-17, *[0.0] * (vocabulary - 6)], dtype=torch.float64)
    target = torch.nextafter(draft, torch.zeros_like(draft))
    target[5] = 0.0
    return target, draft


def step(target: Tensor, draft: Tensor, proposal: Proposal) -> Tree:
    count = len(proposal.token_ids)
    return Tree(StepRows(target.expand(count + 1, -1), proposal.token_ids, proposal, as_given, as_given))


def chain(target: Tensor, draft: Tensor, token_ids: list[int]) -> Tree:
    return step(target, draft, Proposal(token_ids, draft.expand(len(token_ids), -1)))


def _judged(rule: AcceptanceRule, position: Position) -> Decision:
    return Decision(rule)


def numbers(tests: list[float], *others: float) -> RandomNumbers:
    return RandomNumbers(torch.tensor([*tests, *others, *[0.5] * len(tests)], dtype=torch.float64), len(tests))


def test_the_rows_leave_nothing() -> None:
    target, draft = rows_without_rest()
    assert not left_over(target, draft).any()
    assert target.nonzero().flatten().tolist() == [1, 2, 3, 4]
    assert Distribution(target).total == Distribution(draft).total == 1
    assert (target[1:5] / draft[1:5] <= LAST).all()  # so the test fails by that number


@all_of("length", [1, 2, 3])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", CHAINS)
def test_on_a_chain(name: str, rule: str, length: int) -> None:
    if VERIFICATIONS[name].lossy and rule != "lossless":
        return
    target, draft = rows_without_rest()
    judge = parse_rule(rule)
    seen = set()
    for drafted in range(1, 6):
        for first in range(length):  # which number rejects
            for u in UNIFORMS:
                tests = [0.5] * first + [LAST] * (length - first)
                tree = chain(target, draft, [drafted] * length)
                walk = CHAINS[name](tree, partial(_judged, judge), numbers(tests, u))
                assert drafted < 5 or not walk.path
                assert walk.next_token == draw_one(target, torch.tensor(u, dtype=torch.float64))
                seen.add(walk.next_token)
    assert seen == {1, 2, 3, 4}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", TREES)
def test_on_a_tree(name: str, rule: str) -> None:
    target, draft = rows_without_rest()
    for drafted, row in ((1, draft), (1, target), (2, draft), (5, draft)):
        proposal = Proposal([4, drafted, 3, drafted], row.expand(2, -1), [-1, -1, 1, 1], [False, True, False, True])
        judge = parse_rule(rule)
        for number in (0.0, 0.5, LAST):
            for u in UNIFORMS[::4]:
                walk = TREES[name](step(target, row, proposal), partial(_judged, judge), numbers([number] * 4, u, u, u))
                assert target[walk.next_token] > 0


@pytest.mark.parametrize("name", TREES)
def test_behind_a_child_that_is_kept_in_any_case(name: str) -> None:
    """The text's own weights are used up by the child, and rounding uses up those of the child's own child."""
    target, draft = rows_without_rest()
    rows, drafts = torch.stack([draft, target, target]), torch.stack([draft, draft])
    proposal = Proposal([2, 5], drafts, [-1, 0])
    lossless = parse_rule("lossless")
    for u in UNIFORMS:
        tree = Tree(StepRows(rows, proposal.token_ids, proposal, as_given, as_given))
        walk = TREES[name](tree, lambda position: Decision(lossless), numbers([LAST, LAST], u))
        assert (walk.path, walk.next_token) == ([0], draw_one(target, torch.tensor(u, dtype=torch.float64)))


@pytest.mark.parametrize("name", CHAINS)
def test_a_subnormal_weight_is_drawn(name: str) -> None:
    """Nothing but the least number of float64 is left, which is not nothing."""
    target, draft = rows_without_rest()
    draft[0], target[0] = 1e-310, 1e-310 + 5e-324
    scheme: Scheme = CHAINS[name]
    lossless = parse_rule("lossless")
    for drafted in range(1, 5):
        walk = scheme(chain(target, draft, [drafted]), lambda position: Decision(lossless), numbers([LAST], 0.7))
        assert (walk.path, walk.next_token) == ([], 0)


@all_of("length", [1, 2, 3])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("verify", [batched.verify, batched.verify_block])
@all_of("vocabulary", [6, 5000])
@all_of("drafted", [2, 5])
def test_in_batches(
    verify, drafted: int, vocabulary: int, rule: str, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, draft = rows_without_rest(vocabulary)
    uniforms = torch.full((43, length + 1), LAST, dtype=torch.float64)
    uniforms[:, -1] = torch.tensor(UNIFORMS, dtype=torch.float64)
    monkeypatch.setattr(batched, "draw_uniforms", lambda *given: uniforms)
    rows, ids = target.expand(43, length + 1, -1), torch.full((43, length), drafted)
    found = verify(rule, rows, draft.expand(43, length, -1), ids)
    assert torch.equal(found.next_token, draw(target.expand(43, -1), uniforms[:, -1]))
    assert set(found.next_token.tolist()) == {1, 2, 3, 4}


def test_weights_that_are_none_are_the_target_s() -> None:
    target, some = torch.tensor([0.0, 0.5, 0.5]), torch.tensor([0.0, 0.0, 1e-45])
    assert recovery_weights(some, target) is not target
    for weights in (some, torch.tensor([1e38, 1.0, 0.0])):
        assert torch.equal(recovery_weights(weights, target), weights)
    for none in (torch.zeros(3), torch.tensor([0.0, math.nan, 1.0]), torch.tensor([0.0, math.inf, 1.0])):
        assert torch.equal(recovery_weights(none, target), target)
        rows = recovery_weights(torch.stack([none, some]), target)
        assert torch.equal(rows, torch.stack([target, some]))


@all_of("vocabulary", [1, 3, 5000])
@all_of("u", [0.0, 0.3, LAST])
def test_without_weights_no_token_is_drawn(vocabulary: int, u: float) -> None:
    nothing, number = torch.zeros(vocabulary), torch.tensor(u, dtype=torch.float64)
    assert draw(nothing, number) == draw_one(nothing, number) == vocabulary
    something = torch.zeros(vocabulary, dtype=torch.float64)
    something[-1] = 5e-324
    assert draw(something, number) == draw_one(something, number) == vocabulary - 1
    assert draw(torch.stack([nothing.double(), something]), number.expand(2)).tolist() == [vocabulary, vocabulary - 1]
