"""The frontier: exact against enumeration, and monotone where theory says so."""

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

from cactus_decoding import parse_rule
from cactus_decoding.core.policy.phases import Phases
from cactus_decoding.core.policy.relaxation import RelaxationPolicy, relaxation_policy
from cactus_decoding.core.policy.vocabulary import Vocabulary
from cactus_decoding.core.types import judges_untempered
from cactus_decoding.lab.frontier.frontier import LOOSEST, Frontier, frontier
from cactus_decoding.lab.frontier.relaxations import FAMILIES

EXACT = 1e-10
SAMPLED = tuple(text for text in SPELLINGS if not judges_untempered(parse_rule(text)))


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


def test_chunks_do_not_matter():
    for rows in (some_rows(), one_sparse_step()):
        one_by_one, at_once = (Frontier(rows, memory=memory).measure("cactus:delta=1") for memory in (1, 2**30))
        for name in ("acceptance", "kl", "tv"):
            assert getattr(one_by_one, name) == pytest.approx(getattr(at_once, name), abs=1e-14, nan_ok=True)


def test_few_problems_are_too_few_to_tell_how_others_would_differ():
    for rows, told in ((some_rows(), False), (agreeable_rows(), True)):  # three and twelve problems
        point = Frontier(rows).measure("cactus:delta=0.001")
        for interval in (point.acceptance, point.kl, point.tv, *point.tokens_per_step):
            assert interval.has_ends == told
            assert not told or interval.low < interval.value < interval.high


def test_lossless_costs_nothing_and_emits_as_many_tokens_as_the_textbook_says():
    rows = some_rows()
    point = Frontier(rows).measure("lossless")
    assert point.kl.value < 1e-12
    assert point.tv.value < 1e-12
    assert abs(point.max_log_ratio) < 1e-6
    overlap = torch.minimum(float64_rows(rows.target), float64_rows(rows.draft)).sum(-1)[rows.visited].mean()
    assert point.acceptance.value == pytest.approx(overlap.item(), abs=EXACT)


@pytest.mark.parametrize("rows", [some_rows(), one_sparse_step()], ids=["dense", "sparse"])
def test_nothing_accepts_more_than_the_limit(rows):
    measured = Frontier(rows)
    limit = measured.measure(LOOSEST)
    inside = torch.where(float64_rows(rows.target) > 0, float64_rows(rows.draft), 0.0).sum(-1)[rows.visited].mean()
    assert limit.acceptance.value == pytest.approx(inside.item(), abs=1e-9)
    for family in FAMILIES.values():
        assert measured.measure(family.spell(family.loose)).acceptance.value <= limit.acceptance.value + 1e-9


@pytest.mark.parametrize("name", ["cactus", "cactus_exact", "clamped", "clamped_max_kl", "ensemble", "lenience"])
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
    kept = accepted.gather(1, rows.drafted.long().unsqueeze(1)) / draft.gather(1, rows.drafted.long().unsqueeze(1))
    assert torch.allclose(measured.chances(rule, DIGITS), kept.squeeze(1).clamp(max=1), rtol=0, atol=EXACT)


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


def test_protecting_less_and_less_leads_from_lossless_to_the_rule():
    rows = some_rows()
    measured = Frontier(rows, vocabulary=vocabulary(7))
    points = [measured.measure("clamped:width=2", policy=relaxation_policy("digits", each / 10)) for each in range(11)]
    for name in ("acceptance", "kl"):
        values = [getattr(point, name).value for point in points]
        assert all(later >= earlier - 1e-12 for earlier, later in pairwise(values))
    assert points[0].kl.value < points[-1].kl.value / 2  # only rows that give digits no probability at all
    assert points[-1].kl == measured.measure("clamped:width=2").kl


def test_every_family_is_measured_under_every_policy():
    rows = some_rows()
    families, policies = [FAMILIES["clamped"], FAMILIES["cactus"]], [RelaxationPolicy(), DIGITS]
    points = frontier(rows, families, points=2, policies=policies, vocabulary=vocabulary(7))
    assert [point.family for point in points] == ["lossless", "limit", *["clamped"] * 4, *["cactus"] * 4]
    assert [point.relaxation.policy for point in points[2:]] == [*[RelaxationPolicy()] * 2, *[DIGITS] * 2] * 2
    assert [point.as_dict().get("protect") for point in points[2:6]] == [None, None, "digits", "digits"]
    assert "protect" not in points[2].as_dict()


def test_policies_that_rows_do_not_decide_are_refused():
    with pytest.raises(ValueError, match="what the tokens say must be known"):
        Frontier(some_rows()).measure("clamped:width=1", policy=DIGITS)
    with pytest.raises(ValueError, match="protection alone can be measured, but the policy is: after 3 tokens"):
        Frontier(some_rows()).measure("clamped:width=1", policy=RelaxationPolicy(phases=Phases(3)))
    with pytest.raises(ValueError, match="matches none of the 7 tokens"):
        Frontier(some_rows(), vocabulary=vocabulary(7)).measure("clamped:width=1", policy=relaxation_policy("z"))
