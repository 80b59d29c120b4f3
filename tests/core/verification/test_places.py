"""Every place that tests a drafted token decides alike: for the same rows and random numbers, the same decisions.

The generators are the same on both sides, so nothing is statistical here. What `verify` decides on whole rows is the
reference; a walk may look at rows lazily, a policy may keep a rule away, and an engine is given relaxed logits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.decisions import protected_mass
from support.exact_enumeration import hand_made_rows
from support.rules_under_test import NEVER_STRICTER_THAN_LOSSLESS, SPELLINGS, every_rule
from torch import Tensor

from cactus_decoding.core.policy.decide import Policy
from cactus_decoding.core.policy.phases import Phases
from cactus_decoding.core.policy.protection import Protection
from cactus_decoding.core.policy.relaxation import FittedPolicy
from cactus_decoding.core.policy.vocabulary import Vocabulary
from cactus_decoding.core.relaxed_logits import relax_rows, relax_tokens, works_as_logits
from cactus_decoding.core.rules import Cactus, ClampedRatio, Lossless, as_rule, parse_rule
from cactus_decoding.core.rules.base import GreedyRule, LiftRule
from cactus_decoding.core.sampling import rows as sampled
from cactus_decoding.core.sampling.params import LARGE_VOCABULARY, SamplingParams
from cactus_decoding.core.types import (
    AcceptanceRule,
    Decision,
    Outcome,
    Proposal,
    StepRows,
    Verdict,
    Verification,
)
from cactus_decoding.core.verification.batched import verified_at_once, verify
from cactus_decoding.core.verification.match import match
from cactus_decoding.core.verification.tree import RandomNumbers, Tree, Walk
from cactus_decoding.core.verification.walk import walk

SAMPLINGS = (
    SamplingParams(),
    SamplingParams(temperature=0.6, top_p=0.95, top_k=20),
    SamplingParams(temperature=0.8, top_p=0.9),
    SamplingParams(temperature=1.3, min_p=0.05),
    SamplingParams(temperature=0),
)
FOR_SAMPLING = [text for text in SPELLINGS if not isinstance(parse_rule(text), GreedyRule)]
SMALL, LARGE = 12, LARGE_VOCABULARY + 37


@dataclass(frozen=True)
class Case:
    """A chain of four proposals with the target's logits and, unless it is deterministic, the draft's rows."""

    logits: Tensor
    draft: Tensor | None
    drafted: Tensor
    sampling: SamplingParams
    seed: int

    @property
    def rows(self) -> StepRows:
        proposal = Proposal(self.drafted.tolist(), self.draft)
        return StepRows(self.logits, proposal.token_ids, proposal, *[lambda logits, _: self.sampling(logits)] * 2)

    @property
    def numbers(self) -> RandomNumbers:
        return RandomNumbers.draw(self.rows.proposal, torch.Generator().manual_seed(self.seed), self.logits.device)

    def on_whole_rows(self, rule: AcceptanceRule, **given: bool) -> Verification:
        probs, generator = self.sampling(self.logits), torch.Generator().manual_seed(self.seed)
        return verify(rule, probs, self.draft, self.drafted, generator, **given)

    def walked(self, rule: AcceptanceRule, fitted: FittedPolicy | None = None) -> Outcome:
        policy = Policy(rule, None, fitted)
        return walk(match, policy, policy.begin(), self.rows, self.numbers, self.sampling)[1]


def case(vocabulary: int, seed: int, sampling: SamplingParams, *, deterministic: bool = False) -> Case:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(5, vocabulary, generator=generator) * 3
    # the draft often agrees, sometimes does not, and is cut less: it also proposes what the target excludes
    noise = torch.randn(4, vocabulary, generator=generator) * torch.rand(4, 1, generator=generator) * 2
    draft = SamplingParams(temperature=sampling.temperature or 1.0, top_k=40)(logits[:-1] + noise)
    drafted = torch.multinomial(draft, 1, generator=generator).flatten()
    return Case(logits, None if deterministic else draft, drafted, sampling, seed)


def decided(given: Walk | Outcome) -> Verification:
    """Return a walk, or what was made of it, as `verify` gives it."""
    tests = given.visits
    relaxed = torch.zeros(4, dtype=torch.bool)
    for test in tests:
        relaxed[test.node] = test.relaxed
    return Verification(torch.tensor(len(given.path)), torch.tensor(given.next_token), relaxed)


def assert_same(given: Verification, expected: Verification) -> None:
    for name, value in expected._asdict().items():
        assert torch.equal(getattr(given, name), value), (name, given, expected)


def assert_places_agree(rule: AcceptanceRule, one: Case) -> Verification:
    expected = one.on_whole_rows(rule)
    assert_same(decided(one.walked(rule)), expected)
    if one.logits.shape[-1] == SMALL:  # in large rows what float32 lost may decide
        assert_same(decided(match(Tree(one.rows), lambda position: Decision(rule), one.numbers)), expected)
    assert_same(decided(verified_at_once(Decision(rule), one.rows, one.numbers)), expected)
    return expected


def kept_by_an_engine(rule: AcceptanceRule, one: Case) -> int | None:
    """Return how many an engine keeps that is given relaxed logits; None where rounding may decide."""
    logits, ids = one.logits[:-1], one.drafted
    if one.draft is None or isinstance(rule, LiftRule):
        token_logits = logits.gather(1, ids[:, None]).squeeze(1)
        relaxed: Tensor = relax_tokens(rule, token_logits, logits.logsumexp(-1), (logits, ids)).logits
        logits = logits.scatter(1, ids[:, None], relaxed[:, None])
    else:
        logits = relax_rows(rule, logits, one.draft, ids).logits
    h = logits.softmax(-1).gather(1, ids[:, None]).squeeze(1)
    p = torch.ones(4) if one.draft is None else one.draft.gather(1, ids[:, None]).squeeze(1)
    for node in range(4):
        needed = one.numbers.number(node) * p[node].item()
        if abs(needed - h[node].item()) < 1e-5:
            return None
        if needed >= h[node].item():
            return node
    return 4


@every_rule(FOR_SAMPLING)
@settings(max_examples=40)
@given(seed=st.integers(0, 2**32 - 1), deterministic=st.booleans(), sampling=st.sampled_from(SAMPLINGS))
def test_every_place_decides_alike(spelling: str, seed: int, deterministic: bool, sampling: SamplingParams) -> None:
    rule, one = parse_rule(spelling), case(SMALL, seed, sampling, deterministic=deterministic)
    expected = assert_places_agree(rule, one)
    if works_as_logits(rule) and sampling == SamplingParams():
        assert kept_by_an_engine(rule, one) in (int(expected.num_accepted), None)


@every_rule(FOR_SAMPLING)
def test_every_place_decides_alike_on_large_rows(spelling: str) -> None:
    rule, rejected = parse_rule(spelling), 0
    for seed in range(12):
        for deterministic in (False, True):
            one = case(LARGE, seed, SAMPLINGS[seed % 4], deterministic=deterministic)
            rejected += int(assert_places_agree(rule, one).num_accepted < 4)
    assert rejected


class TooSure(Cactus):
    """Is sure of what it has not worked out."""

    def surely_accepts(self, *_: object) -> bool:
        return True


@pytest.mark.parametrize("wrong", [Lossless(), TooSure(0.01)])
def test_a_place_that_tests_otherwise_is_noticed(wrong: AcceptanceRule) -> None:
    right = Cactus(1.0) if isinstance(wrong, Lossless) else Cactus(0.01)
    cases = [case(LARGE, seed, SAMPLINGS[0]) for seed in range(20)]
    assert any(decided(one.walked(wrong)).num_accepted != one.on_whole_rows(right).num_accepted for one in cases)


def test_no_proposals() -> None:
    one = case(LARGE, 3, SAMPLINGS[1])
    for draft in (None, one.draft[:0]):
        empty = Case(one.logits[:1], draft, torch.zeros(0, dtype=torch.long), SAMPLINGS[1], 1)
        assert empty.walked(Lossless()).next_token == int(empty.on_whole_rows(Lossless()).next_token)


@pytest.mark.parametrize("width", [0.3, 1.0, 3.0])
def test_what_is_surely_accepted_is_accepted(width: float) -> None:
    rule, sure = ClampedRatio(width=width), 0
    for seed in range(3):
        one = case(LARGE, seed, SAMPLINGS[0])
        probs, p = SAMPLINGS[0](one.logits[0]), one.draft[0]
        for token in {int(one.drafted[0]), int(probs.argmax()), 5}:
            h = rule.judge(probs, p, torch.tensor([token])).relaxed_prob.item()
            for needed in (0.5 * h, 0.97 * h, 0.995 * h, 0.9999 * h, h, 1.0001 * h, 1.01 * h, 2 * h):
                if probs[token].item() <= needed < p[token].item():  # the lossless test has failed
                    accepts = rule.surely_accepts(needed, probs, p, token)
                    assert not accepts or needed < h
                    sure += accepts
    assert sure > 0


@dataclass(frozen=True)
class Recording(Cactus):
    """Cactus that notes how many tokens it is asked about."""

    asked: list[int] = field(default_factory=list, compare=False)

    def judge(self, target_probs: Tensor, draft_probs: Tensor | None, token_ids: Tensor) -> Verdict:
        self.asked.append(target_probs.shape[-1])
        return super().judge(target_probs, draft_probs, token_ids)


def test_a_rule_is_asked_only_where_the_lossless_test_fails_and_about_the_support_only() -> None:
    for seed in range(8):
        rule, one = Recording(0.5), case(LARGE, seed, SAMPLINGS[1])
        result = decided(one.walked(rule))
        assert len(rule.asked) == int(result.relaxed.sum()) + int(result.num_accepted < 4)
        assert all(size <= one.sampling.top_k + 1 for size in rule.asked)


class LooksAtTheWholeRow:
    """A rule of someone's own, which promises nothing: stricter than the lossless test, and it counts the tokens."""

    def judge(self, target_probs: Tensor, draft_probs: Tensor | None, token_ids: Tensor) -> Verdict:
        probs = target_probs.gather(-1, token_ids).double()
        return Verdict(probs * (target_probs.shape[-1] / (2 * LARGE)), torch.full_like(probs, 0.5))


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_a_rule_that_promises_nothing_is_asked_about_every_token_and_whole_rows(sampling: SamplingParams) -> None:
    for seed in range(6):
        assert_places_agree(LooksAtTheWholeRow(), case(LARGE, seed, sampling))


def test_which_rules_promise_never_to_be_stricter_than_lossless() -> None:
    promising = {text for text in SPELLINGS if parse_rule(text).never_stricter}
    assert promising == set(NEVER_STRICTER_THAN_LOSSLESS)  # of which another test knows that they are not


@every_rule()
def test_numbers_stay_the_same_without_what_the_target_excludes(spelling: str) -> None:
    rule = parse_rule(spelling)
    assert isinstance(rule, GreedyRule) or rule.support_only
    for q, p in zip(*hand_made_rows(), strict=True):
        for drafted in range(len(q)):
            kept = (q > 0) | (torch.arange(len(q)) == drafted)
            place = int(kept[:drafted].sum())
            whole = rule.judge(q, p, torch.tensor([drafted]))
            part = rule.judge(q[kept], p[kept], torch.tensor([place]))
            torch.testing.assert_close(part.relaxed_prob, whole.relaxed_prob, rtol=0, atol=1e-12)
            torch.testing.assert_close(part.residual_scale, whole.residual_scale, rtol=1e-9, atol=1e-12)
            start = whole.recovers_from(q)
            torch.testing.assert_close(part.recovers_from(q[kept]), start[kept], rtol=1e-12, atol=0)
            assert (start[~kept] == 0).all()


# --- a policy says where the rule may judge ---

DIGITS = torch.arange(3, LARGE, 401)
"""Of the large vocabulary a few tokens, as digits are of a real one."""


def fitted(vocabulary: int, threshold: float) -> FittedPolicy:
    """Return a policy that protects these tokens, or of a small vocabulary its first three."""
    mask = torch.zeros(vocabulary, dtype=torch.bool)
    mask[DIGITS if vocabulary == LARGE else torch.arange(3)] = True
    return FittedPolicy(Vocabulary(("a",) * vocabulary), Phases(), Protection("digits", threshold), mask)


class Confined:
    """A rule at some positions of a chain, and the lossless rule at the others."""

    def __init__(self, rule: AcceptanceRule, where: Tensor) -> None:
        self._rule, self._where = rule, where.unsqueeze(-1)

    def judge(self, target_probs: Tensor, draft_probs: Tensor | None, token_ids: Tensor) -> Verdict:
        verdicts = [rule.judge(target_probs, draft_probs, token_ids) for rule in (self._rule, Lossless())]
        whole = [each._replace(recovery=each.recovers_from(target_probs)) for each in verdicts]
        return Verdict(*(torch.where(self._where, *each) for each in zip(*whole, strict=True)))


def confined(rule: AcceptanceRule, policy: FittedPolicy, one: Case) -> tuple[Verification, list[bool]]:
    """Return what whole rows say of a rule that judges where a policy lets it, and where that is."""
    where = protected_mass(one.sampling(one.logits)[:-1], policy.token_ids) <= policy.protection.threshold
    where |= torch.tensor(policy.protection.threshold >= 1)
    plain = one.on_whole_rows(Confined(rule, where), validate=False)
    return plain, where.tolist()[: int(plain.num_accepted) + 1]


@every_rule(FOR_SAMPLING)
@pytest.mark.parametrize("vocabulary", [SMALL, LARGE])
def test_a_confined_rule_decides_and_recovers_as_whole_rows_do(spelling: str, vocabulary: int) -> None:
    rule, judged, kept_away = parse_rule(spelling), 0, 0
    for seed, sampling in enumerate(SAMPLINGS[:4]):
        for deterministic in (False, True):
            one = case(vocabulary, seed, sampling, deterministic=deterministic)
            masses = protected_mass(sampling(one.logits[:-1]), fitted(vocabulary, 0.5).token_ids)
            at = masses[0].item()
            near = (at, math.nextafter(at, -1), math.nextafter(at, 2), at * 0.9, at * 1.1)
            for threshold in (0.0, 1.0, masses.median().item(), *(min(1.0, max(0.0, each)) for each in near)):
                policy = fitted(vocabulary, threshold)
                outcome, (plain, where) = one.walked(rule, policy), confined(rule, policy, one)
                assert_same(decided(outcome), plain)
                assert [not visit.protected for visit in outcome.visits] == where
                judged, kept_away = judged + sum(where), kept_away + len(where) - sum(where)
    assert judged > 10
    assert kept_away > 10


def test_a_policy_that_is_not_asked_is_noticed() -> None:
    rule, policy = as_rule("cactus:delta=1"), fitted(LARGE, 0.0)
    cases = [case(LARGE, seed, SAMPLINGS[0]) for seed in range(12)]
    assert any(decided(one.walked(rule)).num_accepted != confined(rule, policy, one)[0].num_accepted for one in cases)


@pytest.mark.parametrize("sampling", SAMPLINGS[:4], ids=str)
def test_a_row_that_holds_nan_is_protected_and_gives_no_token(sampling: SamplingParams) -> None:
    one = case(LARGE, 0, sampling)
    one.logits[0, 7] = math.nan
    for policy in (None, fitted(LARGE, 0.5)):
        outcome = one.walked(Cactus(1.0) if policy else Lossless(), policy)
        assert outcome.path == []
        assert outcome.next_token >= LARGE
        assert outcome.visits[0].protected is (policy is not None)


@pytest.mark.parametrize("protected", [False, True])
def test_each_row_is_made_once_and_none_that_is_not_visited(protected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    made, make = list[int](), sampled.LazyRows._make
    monkeypatch.setattr(sampled.LazyRows, "_make", lambda self, row: (made.append(row), make(self, row))[1])
    kept_away = 0
    for seed in range(12):
        made.clear()
        one = case(LARGE, seed, SAMPLINGS[0 if protected else 1])
        if not protected:
            one.logits[3] = math.nan  # a row that is not reached may hold anything
            one.drafted[2] = int(one.logits[2].argmin())  # excluded by the target: rejected if it is reached
        outcome = one.walked(Cactus(1.0) if protected else Lossless(), fitted(LARGE, 0.002) if protected else None)
        assert made == list(range(outcome.num_accepted + 1))
        assert outcome.next_token < LARGE
        kept_away += outcome.num_protected
    assert (kept_away > 0) is protected
