"""The frontier and what width is worth: exact against enumeration, and monotone where theory says so."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from support.decisions import plan
from support.exact_enumeration import enumerate_tokens
from support.recorded_rows import (
    agreeable_rows,
    enumerated,
    enumerated_tokens,
    float64_rows,
    hand_made,
    one_sparse_step,
    some_rows,
)
from support.rules_under_test import SPELLINGS, Altered, every_rule
from support.tables import all_of
from support.tree_enumeration import TREE_SCHEMES, steps, uniform_shape
from torch import Tensor

from cactus_decoding import parse_rule
from cactus_decoding.core.policy.phases import Phases
from cactus_decoding.core.policy.relaxation import RelaxationPolicy, relaxation_policy
from cactus_decoding.core.policy.vocabulary import Vocabulary
from cactus_decoding.core.rules.base import GreedyRule
from cactus_decoding.lab.frontier.frontier import LOOSEST, Frontier, chance_kept, frontier
from cactus_decoding.lab.frontier.relaxations import FAMILIES

EXACT = 1e-10
SAMPLED = tuple(text for text in SPELLINGS if not isinstance(parse_rule(text), GreedyRule))


@every_rule(SAMPLED)
@pytest.mark.parametrize("rows", [some_rows(), one_sparse_step()], ids=["dense", "sparse"])
def test_every_number_is_that_of_enumeration(spelling, rows):
    rule = parse_rule(spelling)
    point = Frontier(rows, memory=20_000).measure(rule)  # so little that there are several chunks
    expected = enumerated(rule, rows)
    for name in ("acceptance", "kl", "tv"):
        assert getattr(point, name).value == pytest.approx(expected[name], abs=EXACT)
    assert point.max_log_ratio == pytest.approx(expected["max_log_ratio"], abs=1e-7)
    tokens = [each.value for each in point.tokens_per_step]
    assert tokens == pytest.approx(enumerated_tokens(rule, rows, len(tokens)), abs=EXACT)


def test_a_wrong_rule_is_told_apart_by_enumeration():
    rows = some_rows()
    wrong = Altered(parse_rule("cactus:delta=1"), acceptance_factor=0.9)
    point = Frontier(rows).measure(wrong)
    assert abs(point.acceptance.value - enumerated(wrong.right, rows)["acceptance"]) > 1e-3


def test_few_problems_are_too_few_to_tell_how_others_would_differ():
    for rows, told in ((some_rows(), False), (agreeable_rows(), True)):  # three and twelve problems
        point = Frontier(rows).measure("cactus:delta=0.001")
        for interval in (point.acceptance, point.kl, point.tv, *point.tokens_per_step):
            assert interval.has_ends == told
            assert not told or interval.low < interval.value < interval.high


@all_of("rows", [some_rows(), one_sparse_step()])
def test_nothing_accepts_more_than_the_limit(rows):
    measured = Frontier(rows)
    limit = measured.measure(LOOSEST)
    inside = torch.where(float64_rows(rows.target) > 0, float64_rows(rows.draft), 0.0).sum(-1)[rows.visited].mean()
    assert limit.acceptance.value == pytest.approx(inside.item(), abs=1e-9)
    for family in FAMILIES.values():
        assert measured.measure(family.spell(family.loose)).acceptance.value <= limit.acceptance.value + 1e-9


@all_of("name", ["cactus", "cactus_exact", "clamped", "clamped_max_kl", "ensemble", "lenience"])
def test_a_looser_knob_accepts_and_costs_more(name):
    family = FAMILIES[name]
    points = [Frontier(some_rows()).measure(family.spell(knob)) for knob in family.knobs(9)]
    for number in ("acceptance", "kl"):
        values = [getattr(point, number).value for point in points]
        assert all(later >= earlier - 1e-9 for earlier, later in pairwise(values))
    assert points[-1].acceptance.value > points[0].acceptance.value + 0.05


@pytest.mark.slow
def test_no_rule_beats_the_clamped_ratio_at_its_acceptance():
    # the optimum is over rules of one multiplier for all positions, so mean acceptance is compared with mean KL
    rows = some_rows()
    points = frontier(rows, list(FAMILIES.values()), points=3)
    measured = Frontier(rows)
    for point in points[2:]:
        low, high = 0.0, 500.0
        for _ in range(30):
            middle = (low + high) / 2
            less = measured.measure(f"clamped:width={middle!r}").acceptance.value < point.acceptance.value
            low, high = (middle, high) if less else (low, middle)
        assert measured.measure(f"clamped:width={low!r}").kl.value <= point.kl.value + 1e-5, point.rule


# --- with protected tokens ---

DIGITS = relaxation_policy("digits", 0.3)


def vocabulary(size: int) -> Vocabulary:
    """Return one in which every third token is a digit."""
    return Vocabulary(tuple("1" if token % 3 == 0 else "a" for token in range(size)))


ANY = torch.tensor([0])
"""What is drafted decides nothing."""


def law_of_plan(rule, where, target, draft):
    """Return what a verifier that may relax only somewhere emits and accepts, one row after another."""
    rows = [
        enumerate_tokens(plan(rule, target[i : i + 1], draft[i : i + 1], ANY, relaxable=where[i : i + 1]).rule,
                         target[i : i + 1], draft[i : i + 1])
        for i in range(len(target))
    ]  # fmt: skip
    return torch.cat([output for output, _ in rows]), torch.cat([accepted for _, accepted in rows])


@every_rule(SAMPLED)
@pytest.mark.parametrize("rows", [some_rows(), one_sparse_step()], ids=["dense", "sparse"])
def test_a_protected_rule_accepts_and_costs_what_the_plan_of_a_verifier_does(spelling, rows):
    rule, known = parse_rule(spelling), vocabulary(rows.target.vocabulary)
    measured = Frontier(rows, memory=20_000, vocabulary=known)
    fitted = DIGITS.fit_vocabulary(known)
    probs = rows.target.dense(0, len(rows.target))
    where = ~torch.tensor(plan(rule, probs, None, rows.drafted.long(), fitted=fitted).protected)
    assert torch.equal(measured.relaxable(DIGITS), where)
    assert 0 < int(where[rows.visited].sum()) < int(rows.visited.sum())
    point = measured.measure(rule, policy=DIGITS)
    target, draft = (float64_rows(packed) for packed in (rows.target, rows.draft))
    output, accepted = law_of_plan(rule, where, target, draft)
    assert point.acceptance.value == pytest.approx(accepted[rows.visited].sum(-1).mean().item(), abs=EXACT)
    moved = (output - target)[rows.visited].abs().sum(-1) / 2
    assert point.tv.value == pytest.approx(moved.mean().item(), abs=EXACT)
    decided = plan(rule, target, draft, rows.drafted.long(), limit=torch.inf, relaxable=where)
    costs = torch.tensor(decided.costs, dtype=torch.float64).clamp(min=0)
    assert costs[~where].eq(0).all()
    assert point.kl.value == pytest.approx(costs[rows.visited].mean().item(), abs=1e-9)


def test_protection_by_the_drafted_token_would_be_told_apart():
    rows, known = some_rows(), vocabulary(7)
    digits = torch.tensor([text == "1" for text in known.texts])
    wrong = ~digits[rows.drafted.long()]
    assert not torch.equal(Frontier(rows, vocabulary=known).relaxable(DIGITS), wrong)


def test_a_threshold_of_1_protects_no_row_however_it_was_rounded():
    target = torch.zeros(4, 7).index_fill_(1, torch.tensor([0, 3, 6]), 1 / 3 * (1 + 1e-6))
    rows = hand_made(target, torch.full((4, 7), 1 / 7), counts=[4], problem=[0], ends=[False])
    measured = Frontier(rows, vocabulary=vocabulary(7))
    assert rows.target.masses(torch.tensor([0, 3, 6])).gt(1).all()
    assert measured.relaxable(relaxation_policy("digits", 1.0)).all()
    assert not measured.relaxable(relaxation_policy("digits", math.nextafter(1, 0))).any()


def test_policies_that_rows_do_not_decide_are_refused():
    known = vocabulary(7)
    for words, policy, said in (
        (None, DIGITS, "what the tokens say must be known"),
        (
            None,
            RelaxationPolicy(phases=Phases(3)),
            "protection alone can be measured, but the policy is: after 3 tokens",
        ),
        (known, relaxation_policy("z"), "matches none of the 7 tokens"),
    ):
        with pytest.raises(ValueError, match=said):
            Frontier(some_rows(), vocabulary=words).measure("clamped:width=1", policy=policy)


RULES = ("lossless", "cactus:delta=0.2", "clamped:width=0.7", "ensemble:weight=0.4", "lenience:lenience=0.6", "typical",
         "top_k:k=2")  # fmt: skip


class OneNode:
    """Models of which only the rows behind the text matter."""

    def __init__(self, target: Tensor, draft: Tensor) -> None:
        self.rows, self.vocabulary = (target, draft), len(target)

    def __call__(self, text: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        return self.rows


def enumerated_children(rule, target: Tensor, draft: Tensor, count: int, *, drawn: bool) -> float:
    """Return how often a child is kept, by enumeration of every draw; a row with fewer tokens gets fewer children."""
    num_fixed = min(count - drawn, int((draft > 0).sum()))
    shape = uniform_shape(1, num_fixed, int(drawn))
    made = steps(TREE_SCHEMES["token"], rule, OneNode(target, draft), (), shape)
    return sum(step.probability for step in made if step.walk.path)


@pytest.mark.parametrize("drawn", [True, False])
@all_of("spelling", RULES)
@pytest.mark.parametrize("rows", [some_rows(), one_sparse_step()], ids=["dense", "sparse"])
def test_every_number_of_children_is_that_of_enumeration(rows, spelling: str, drawn: bool) -> None:
    rule, most = parse_rule(spelling), 4
    point = Frontier(rows, memory=20_000).measure(rule, max_children=most)
    found = point.kept_by_children if drawn else point.kept_by_fixed_children
    targets, drafts = (float64_rows(packed)[rows.visited] for packed in (rows.target, rows.draft))
    for count, interval in enumerate(found, start=1):
        expected = [enumerated_children(rule, q, p, count, drawn=drawn) for q, p in zip(targets, drafts, strict=True)]
        assert interval.value == pytest.approx(sum(expected) / len(expected), abs=1e-10)
    assert len(found) == most
    assert [len(point.as_dict()[name]) for name in ("kept_by_children", "kept_by_fixed_children")] == [most, most]


def test_one_drawn_child_is_a_chain_s_proposal_and_more_children_are_kept_more_often() -> None:
    measured = Frontier(agreeable_rows())
    for rule in ("lossless", "clamped:width=1.0"):
        point = measured.measure(rule, max_children=7)
        assert point.kept_by_children[0].value == pytest.approx(point.acceptance.value, abs=1e-12)
        for kept in (point.kept_by_children, point.kept_by_fixed_children):
            assert all(fewer.value <= more.value + 1e-12 for fewer, more in pairwise(kept))
            assert kept[0].value + 0.01 < kept[-1].value <= 1 + 1e-12
        assert all(drawn.low < drawn.value < drawn.high for drawn in point.kept_by_children[:3])


def test_a_child_that_is_drawn_from_the_whole_row_would_be_told_apart() -> None:
    rows = some_rows()
    targets, drafts = (float64_rows(packed)[rows.visited] for packed in (rows.target, rows.draft))
    right = chance_kept(parse_rule("lossless"), targets, drafts, 2, drawn=True)
    fixed = drafts.argmax(-1, keepdim=True)
    wrong = torch.minimum(targets, drafts).scatter(-1, fixed, 0.0).sum(-1) + targets.gather(-1, fixed).squeeze(-1)
    assert (right - wrong).abs().max() > 1e-3


def test_where_a_policy_keeps_a_rule_away_the_lossless_one_decides() -> None:
    rows = some_rows()
    vocabulary = Vocabulary(tuple("1" if token < 3 else "a" for token in range(7)))
    measured = Frontier(rows, vocabulary=vocabulary)
    everywhere = measured.measure("clamped:width=2", max_children=3)
    nowhere = measured.measure("clamped:width=2", policy=relaxation_policy("digits", 1e-12), max_children=3)
    lossless = measured.measure("lossless", max_children=3)
    for found, expected in zip(nowhere.kept_by_children, lossless.kept_by_children, strict=True):
        assert found.value == pytest.approx(expected.value, abs=1e-14)
    assert everywhere.kept_by_children[0].value > lossless.kept_by_children[0].value
