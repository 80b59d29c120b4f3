"""Lazy tests of plain positions against `verify` on whole rows: the same decisions and tokens for the same numbers.

There is nothing statistical here: the generator is the same on both sides.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest
import torch
from support.decisions import protected_mass
from support.exact_enumeration import hand_made_rows
from support.rules_under_test import NEVER_STRICTER_THAN_LOSSLESS, SPELLINGS
from torch import Tensor

from cactus_decoding.core.policy.decide import Policy
from cactus_decoding.core.policy.phases import Phases
from cactus_decoding.core.policy.position import Position
from cactus_decoding.core.policy.protection import Protection
from cactus_decoding.core.policy.relaxation import FittedPolicy
from cactus_decoding.core.policy.vocabulary import Vocabulary
from cactus_decoding.core.rules import Cactus, ClampedRatio, Lossless, as_rule, parse_rule
from cactus_decoding.core.sampling import rows as sampled
from cactus_decoding.core.sampling.params import LARGE_VOCABULARY, SamplingParams
from cactus_decoding.core.types import (
    ROOT,
    AcceptanceRule,
    Outcome,
    Proposal,
    StepRows,
    Verdict,
    Verification,
    judges_untempered,
)
from cactus_decoding.core.verification.batched import verify
from cactus_decoding.core.verification.match import match
from cactus_decoding.core.verification.tree import RandomNumbers
from cactus_decoding.core.verification.walk import walk

SAMPLINGS = (
    SamplingParams(),
    SamplingParams(temperature=0.6, top_p=0.95, top_k=20),
    SamplingParams(temperature=0.8, top_p=0.9),
    SamplingParams(temperature=1.3, min_p=0.05),
    SamplingParams(temperature=0),
)
FOR_SAMPLING = [text for text in SPELLINGS if not judges_untempered(parse_rule(text))]
every_sampling = pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
LARGE = LARGE_VOCABULARY + 37


def case(vocabulary: int, seed: int, sampling: SamplingParams, batch: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """Return the target's logits, the draft's rows and tokens drawn from them, four proposals a sequence."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(batch, 5, vocabulary, generator=generator) * 3
    # the draft often agrees, sometimes does not, and is cut less: it also proposes what the target excludes
    noise = torch.randn(batch, 4, vocabulary, generator=generator) * torch.rand(batch, 4, 1, generator=generator) * 2
    draft = SamplingParams(temperature=sampling.temperature or 1.0, top_k=40)(logits[:, :-1] + noise)
    drafted = torch.multinomial(draft.flatten(0, 1), 1, generator=generator).reshape(batch, 4)
    return logits, draft, drafted


def walked(
    rule: AcceptanceRule | str,
    logits: Tensor,
    sampling: SamplingParams,
    draft: Tensor | None,
    drafted: Tensor,
    seed: int,
    fitted: FittedPolicy | None = None,
) -> Outcome:
    """Return what the walk decides on a chain."""
    proposal, policy = Proposal(drafted.tolist(), draft), Policy(as_rule(rule), None, fitted)
    rows = StepRows(logits, proposal.token_ids, proposal, *[lambda logits, _: sampling(logits)] * 2)
    numbers = RandomNumbers.draw(proposal, torch.Generator().manual_seed(seed), logits.device)
    return walk(match, policy, policy.begin(), rows, numbers, sampling)[1]


def decided(outcome: Outcome) -> Verification:
    """Return the outcome as `verify` gives it."""
    relaxed = torch.zeros(len(outcome.proposal.token_ids), dtype=torch.bool)
    for visit in outcome.visits:
        relaxed[visit.node] = visit.relaxed
    return Verification(torch.tensor(outcome.num_accepted), torch.tensor(outcome.next_token), relaxed)


def both(
    rule: AcceptanceRule | str,
    logits: Tensor,
    sampling: SamplingParams,
    draft: Tensor | None,
    drafted: Tensor,
    seed: int,
) -> tuple[Verification, Verification]:
    """Return what the lazy walk and the reference make of the same random numbers."""
    fast = decided(walked(rule, logits, sampling, draft, drafted, seed))
    plain = verify(rule, sampling(logits), draft, drafted, torch.Generator().manual_seed(seed))
    return fast, plain


def assert_same(given: Verification, expected: Verification) -> None:
    for name, value in expected._asdict().items():
        assert torch.equal(getattr(given, name), value), (name, given, expected)


@pytest.mark.parametrize("spelling", FOR_SAMPLING)
@pytest.mark.parametrize("vocabulary", [12, LARGE])
def test_every_rule_decides_and_recovers_as_the_reference_does(spelling: str, vocabulary: int) -> None:
    rejected = 0
    for seed in range(4):
        sampling = SAMPLINGS[seed]
        for logits, draft, drafted in zip(*case(vocabulary, seed, sampling, batch=3), strict=True):
            fast, plain = both(spelling, logits, sampling, draft, drafted, seed)
            assert_same(fast, plain)
            rejected += int(plain.num_accepted < 4)
            assert_same(*both(spelling, logits, sampling, None, drafted, seed))
    assert rejected or vocabulary == 12 or spelling == "top_k:k=1000"  # few tokens are too easily guessed


def test_no_proposals() -> None:
    logits, draft, _ = case(LARGE, 3, SAMPLINGS[1])
    empty = torch.zeros(0, dtype=torch.long)
    assert_same(*both("lossless", logits[0, :1], SAMPLINGS[1], None, empty, 1))
    assert_same(*both("lossless", logits[0, :1], SAMPLINGS[1], draft[0, :0], empty, 1))


def test_rows_after_the_first_rejection_are_never_read(monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    at = sampled.LazyRows.at

    def recording(self: sampled.LazyRows, row: int) -> sampled.SparseProbs:
        read.append(row)
        return at(self, row)

    monkeypatch.setattr(sampled.LazyRows, "at", recording)
    sampling = SAMPLINGS[1]
    for seed in range(8):
        read.clear()
        logits, draft, drafted = case(LARGE, seed, sampling)
        logits[0, 3] = math.nan  # and a row that is not reached may hold anything
        drafted[0, 2] = int(logits[0, 2].argmin())  # excluded by the target: rejected if it is reached
        result = decided(walked("lossless", logits[0], sampling, draft[0], drafted[0], 0))
        assert int(result.num_accepted) <= 2
        assert read == list(range(int(result.num_accepted) + 1))
        assert int(result.next_token) < LARGE


@pytest.mark.parametrize("width", [0.3, 1.0, 3.0])
def test_what_is_surely_accepted_is_accepted(width: float) -> None:
    rule, sure = ClampedRatio(width=width), 0
    for seed in range(3):
        logits, draft, drafted = case(LARGE, seed, SAMPLINGS[0])
        probs, p = SAMPLINGS[0](logits[0, 0]), draft[0, 0]
        for token in {int(drafted[0, 0]), int(probs.argmax()), 5}:
            h = rule.judge(probs, p, torch.tensor([token])).relaxed_prob.item()
            for needed in (0.5 * h, 0.97 * h, 0.995 * h, 0.9999 * h, h, 1.0001 * h, 1.01 * h, 2 * h):
                if probs[token].item() <= needed < p[token].item():  # the lossless test has failed
                    accepts = rule.surely_accepts(needed, probs, p, token)
                    assert not accepts or needed < h
                    sure += accepts
    assert sure > 0


def test_a_rule_that_is_too_sure_is_caught_by_the_comparison() -> None:
    class TooSure(Cactus):
        def surely_accepts(self, *_: object) -> bool:
            return True

    differ = 0
    for seed in range(12):
        logits, draft, drafted = case(LARGE, seed, SAMPLINGS[0])
        fast, plain = both(TooSure(0.01), logits[0], SAMPLINGS[0], draft[0], drafted[0], seed)
        differ += not torch.equal(fast.num_accepted, plain.num_accepted)
    assert differ


@dataclass(frozen=True)
class Recording(Cactus):
    """Cactus that notes what it is asked about."""

    asked: list[tuple[int, bool]] = field(default_factory=list, compare=False)

    def judge(self, target_probs: Tensor, draft_probs: Tensor | None, token_ids: Tensor) -> Verdict:
        wanted = target_probs.gather(-1, token_ids)
        self.asked.append((target_probs.shape[-1], bool(wanted > 0)))
        return super().judge(target_probs, draft_probs, token_ids)


def test_the_rule_is_asked_only_where_the_lossless_test_fails_and_about_the_support_only() -> None:
    sampling = SAMPLINGS[1]
    for seed in range(8):
        rule = Recording(0.5)
        logits, draft, drafted = case(LARGE, seed, sampling)
        result = decided(walked(rule, logits[0], sampling, draft[0], drafted[0], seed))
        failed = int(result.relaxed.sum()) + int(result.num_accepted < 4)
        assert len(rule.asked) == failed
        assert all(size <= sampling.top_k + 1 for size, _ in rule.asked)


def test_which_rules_promise_never_to_be_stricter_than_lossless() -> None:
    promising = {text for text in SPELLINGS if parse_rule(text).never_stricter_than_lossless}
    assert promising == set(NEVER_STRICTER_THAN_LOSSLESS)  # of which another test knows that they are not


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_numbers_stay_the_same_without_what_the_target_excludes(spelling: str) -> None:
    rule = parse_rule(spelling)
    assert rule.needs_support_only
    for q, p in zip(*hand_made_rows(), strict=True):
        for drafted in range(len(q)):
            kept = (q > 0) | (torch.arange(len(q)) == drafted)
            place = int(kept[:drafted].sum())
            whole = rule.judge(q, p, torch.tensor([drafted]))
            part = rule.judge(q[kept], p[kept], torch.tensor([place]))
            torch.testing.assert_close(part.relaxed_prob, whole.relaxed_prob, rtol=0, atol=1e-12)
            torch.testing.assert_close(part.residual_scale, whole.residual_scale, rtol=1e-9, atol=1e-12)
            start = rule.recovery_target(q)
            torch.testing.assert_close(rule.recovery_target(q[kept]), start[kept], rtol=1e-12, atol=0)
            assert (start[~kept] == 0).all()


class LooksAtTheWholeRow:
    """A rule of someone's own, which promises nothing: stricter than the lossless test, and it counts the tokens."""

    def judge(self, target_probs: Tensor, draft_probs: Tensor | None, token_ids: Tensor) -> Verdict:
        probs = target_probs.gather(-1, token_ids).double()
        return Verdict(probs * (target_probs.shape[-1] / (2 * LARGE)), torch.full_like(probs, 0.5))

    def recovery_target(self, target_probs: Tensor) -> Tensor:
        return target_probs

    def relaxed_target(self, target_probs: Tensor, draft_probs: Tensor) -> None:
        return None


@every_sampling
def test_a_rule_that_promises_nothing_is_asked_about_every_token_and_whole_rows(sampling: SamplingParams) -> None:
    for seed in range(6):
        logits, draft, drafted = case(LARGE, seed, sampling)
        assert_same(*both(LooksAtTheWholeRow(), logits[0], sampling, draft[0], drafted[0], seed))


@pytest.mark.parametrize("sampling", SAMPLINGS[:4], ids=str)
def test_nan_gives_a_token_that_does_not_exist(sampling: SamplingParams) -> None:
    logits, draft, drafted = case(LARGE, 0, sampling)
    logits[0, 0, 7] = math.nan
    result = decided(walked("lossless", logits[0], sampling, draft[0], drafted[0], 0))
    assert int(result.num_accepted) == 0
    assert int(result.next_token) >= LARGE


@pytest.mark.parametrize("spelling", ["lossless", "cactus:delta=0.1", "ensemble:weight=0.1", "clamped:width=1.0"])
@pytest.mark.parametrize(("largest", "drafted"), [(-44.0, -101.8), (-44.5, -102.5), (-40.0, -100.3), (0.0, -100.3)])
def test_weights_of_few_digits_decide_nothing(spelling: str, largest: float, drafted: float) -> None:
    logits = torch.full((1, 2, LARGE), -1e4)
    logits[..., 0], logits[..., 1] = largest, drafted  # the exponential of the second is a subnormal number
    sampling, uniform = SamplingParams(), torch.rand(1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    target = sampling(logits)[0, 0, 1].item()
    for factor in torch.linspace(0.7, 1.3, 61).tolist():
        draft = torch.zeros(1, 1, LARGE)
        draft[..., 0], draft[..., 1] = 1.0, target * factor / uniform.item()
        assert_same(*reversed(both(spelling, logits[0], sampling, draft[0], torch.tensor([1]), seed=0)))


# --- a policy says where the rule may judge ---

DIGITS = torch.arange(3, LARGE, 401)
"""Of the large vocabulary a few tokens, as digits are of a real one."""


def fitted(vocabulary: int, threshold: float, lossless_tokens: int = 0) -> FittedPolicy:
    """Return a policy that protects these tokens, or of a small vocabulary its first three."""
    mask = torch.zeros(vocabulary, dtype=torch.bool)
    mask[DIGITS if vocabulary == LARGE else torch.arange(3)] = True
    return FittedPolicy(Vocabulary(("a",) * vocabulary), Phases(lossless_tokens), Protection("digits", threshold), mask)


def both_confined(
    rule: AcceptanceRule | str,
    policy: FittedPolicy,
    logits: Tensor,
    sampling: SamplingParams,
    draft: Tensor | None,
    drafted: Tensor,
    seed: int,
) -> tuple[Verification, list[bool], Verification, list[bool]]:
    """Return what the fast path decides, and where the rule judged there; and what whole rows say of the same."""
    outcome, rows = walked(rule, logits, sampling, draft, drafted, seed, policy), sampling(logits)
    assert policy.token_ids is not None
    assert policy.protection is not None
    where = protected_mass(rows[:-1], policy.token_ids) <= policy.protection.threshold
    where |= torch.tensor(policy.protection.threshold >= 1)
    where[: policy.phases.lossless_tokens] = False
    judge = Confined(as_rule(rule), where)
    plain = verify(judge, rows, draft, drafted, torch.Generator().manual_seed(seed), validate=False)
    said = [not visit.protected for visit in outcome.visits]
    return decided(outcome), said, plain, where.tolist()[: int(plain.num_accepted) + 1]


class Confined:
    """A rule at some positions of a chain, and the lossless rule at the others."""

    def __init__(self, rule: AcceptanceRule, where: Tensor) -> None:
        self._rule, self._where = rule, where.unsqueeze(-1)
        self.needs_relaxed_target = getattr(rule, "needs_relaxed_target", False)

    def judge(self, target_probs: Tensor, draft_probs: Tensor | None, token_ids: Tensor) -> Verdict:
        numbers = zip(
            self._rule.judge(target_probs, draft_probs, token_ids),
            Lossless().judge(target_probs, draft_probs, token_ids),
            strict=True,
        )
        return Verdict(*(torch.where(self._where, own, lossless) for own, lossless in numbers))

    def recovery_target(self, target_probs: Tensor) -> Tensor:
        return torch.where(self._where, self._rule.recovery_target(target_probs), target_probs)

    def relaxed_target(self, target_probs: Tensor, draft_probs: Tensor) -> Tensor | None:
        if not self.needs_relaxed_target:
            return None
        return torch.where(self._where, self._rule.relaxed_target(target_probs, draft_probs), target_probs.double())


def allowed(policy: FittedPolicy, logits: Tensor, sampling: SamplingParams) -> bool:
    """Say whether the policy lets a rule judge the first row."""
    rows = StepRows(logits, [0], Proposal([0], None), *[lambda logits, _: sampling(logits)] * 2)
    position = Position(rows, ROOT, sampled.LazyRows(logits, sampling))
    return policy.rule_at(Cactus(1.0), policy.begin([]), position) is not None


def thresholds(policy_rows: Tensor, vocabulary: int) -> list[float]:
    """Return thresholds that part some rows' protected masses, and those masses themselves and their neighbours."""
    digits = fitted(vocabulary, 0.5).token_ids
    assert digits is not None
    masses = protected_mass(policy_rows, digits)
    at = masses[0].item()
    near = [at, math.nextafter(at, -1), math.nextafter(at, 2), at * (1 - 1e-4), at * (1 + 1e-4), at * 0.9, at * 1.1]
    return [0.0, 1.0, masses.median().item(), *(min(1.0, max(0.0, each)) for each in near)]


@pytest.mark.parametrize("spelling", FOR_SAMPLING)
@pytest.mark.parametrize("vocabulary", [12, LARGE])
def test_a_confined_rule_decides_and_recovers_as_whole_rows_do(spelling: str, vocabulary: int) -> None:
    judged = kept_away = 0
    for seed, sampling in enumerate(SAMPLINGS[:4]):
        logits, draft, drafted = case(vocabulary, seed, sampling)
        for threshold in thresholds(sampling(logits[0, :-1]), vocabulary):
            policy = fitted(vocabulary, threshold)
            for rows in (draft[0], None):
                fast, said, plain, where = both_confined(spelling, policy, logits[0], sampling, rows, drafted[0], seed)
                assert_same(fast, plain)
                assert said == where
                judged, kept_away = judged + sum(where), kept_away + len(where) - sum(where)
    assert judged > 10
    assert kept_away > 10


@pytest.mark.parametrize("temperature", [0.6, 1.0])
def test_the_mass_near_the_threshold_is_worked_out_to_the_last_bit(temperature: float) -> None:
    sampling = SamplingParams(temperature=temperature)
    for seed in range(20):
        logits = case(LARGE, seed, sampling)[0][0]
        exact = protected_mass(sampling(logits), DIGITS)
        for factor in (1 - 3e-5, 1 - 1e-9, 1, 1 + 1e-9, 1 + 3e-5):
            policy = fitted(LARGE, min(1.0, exact[0].item() * factor))
            says = allowed(policy, logits, sampling)
            assert says == (exact[0].item() <= exact[0].item() * factor)


@pytest.mark.parametrize(("shift", "logit"), [(0.0, -95.0), (80.0, -20.0), (-40.0, -140.0), (0.0, -200.0)])
def test_masses_too_small_for_all_their_digits_decide_nothing(shift: float, logit: float) -> None:
    logits, sampling = torch.full((1, LARGE), shift), SamplingParams()
    logits[0, DIGITS] = logit
    mass = protected_mass(sampling(logits), DIGITS)[0].item()
    for threshold in (0.0, mass, mass * 0.7, math.nextafter(mass, 1)):
        policy = fitted(LARGE, threshold)
        assert allowed(policy, logits, sampling) == (mass <= threshold)


def test_a_row_that_holds_nan_is_protected_and_gives_no_token() -> None:
    logits, draft, drafted = case(LARGE, 0, SAMPLINGS[0])
    logits[0, 0, 7] = math.nan
    policy = fitted(LARGE, 0.5)
    fast, said, plain, where = both_confined("cactus:delta=1", policy, logits[0], SAMPLINGS[0], draft[0], drafted[0], 0)
    assert_same(fast, plain)
    assert said == where == [False]
    assert int(fast.next_token) >= LARGE


def test_protection_makes_each_row_once_and_no_row_that_is_not_visited(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    make = sampled.LazyRows._make

    def recording(self: sampled.LazyRows, row: int) -> sampled.SparseProbs:
        made.append(row)
        return make(self, row)

    monkeypatch.setattr(sampled.LazyRows, "_make", recording)
    kept_away = 0
    for seed in range(12):
        made.clear()
        logits, draft, drafted = case(LARGE, seed, SAMPLINGS[0])
        policy = fitted(LARGE, 0.002)
        outcome = walked(Cactus(1.0), logits[0], SAMPLINGS[0], draft[0], drafted[0], seed, policy)
        assert made == list(range(outcome.num_accepted + 1))
        kept_away += outcome.num_protected
    assert kept_away > 0


def test_a_policy_that_is_not_asked_is_caught_by_the_comparison() -> None:
    differ = 0
    for seed in range(12):
        logits, draft, drafted = case(LARGE, seed, SAMPLINGS[0])
        policy = fitted(LARGE, 0.0)
        _, _, plain, _ = both_confined("cactus:delta=1", policy, logits[0], SAMPLINGS[0], draft[0], drafted[0], seed)
        fast = decided(walked("cactus:delta=1", logits[0], SAMPLINGS[0], draft[0], drafted[0], seed))
        differ += not torch.equal(fast.num_accepted, plain.num_accepted)
    assert differ
