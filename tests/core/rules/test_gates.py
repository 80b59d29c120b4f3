"""Rules that leave whole positions to the draft: what their pages say of them, exactly."""

from __future__ import annotations

import math
import pickle
from dataclasses import replace
from typing import NamedTuple

import pytest
import torch
from support.exact_enumeration import enumerate_tokens
from support.rules_under_test import Altered, Emitting, expected_numbers
from torch import Tensor

from cactus_decoding import Request, audit
from cactus_decoding.core.audit import audit_verdicts, judge_every_token
from cactus_decoding.core.rules import Cascade, Fuzzy, KLGate, Rule, TokenCascade
from cactus_decoding.core.rules.base import row_rule
from cactus_decoding.core.rules.gate import on_rows

EXACT = 1e-12
GENERATOR = torch.Generator().manual_seed(0)
TARGET = torch.randn(200, 7, generator=GENERATOR, dtype=torch.float64).mul(2).softmax(-1)
DRAFT = (TARGET.log() + torch.randn(200, 7, generator=GENERATOR, dtype=torch.float64).mul(0.8)).softmax(-1)
OPEN = [
    Cascade(0.1),
    Cascade(-0.1, "diff"),
    Cascade(0.4, "chow"),
    *(Fuzzy(threshold, name) for name, threshold in {"js": 0.05, "js_code": 0.06, "kl": 0.2, "tv": 0.25}.items()),
    Fuzzy(0.01, top=2),
    KLGate(0.2),
]


def opened(rule: Rule) -> Tensor:
    """Return where a rule emits the draft's row; elsewhere it must emit the target's."""
    emitted = audit(rule, TARGET, DRAFT).output_probs
    by_draft, by_target = ((emitted - rows).abs().amax(-1) < EXACT for rows in (DRAFT, TARGET))
    assert (by_draft ^ by_target).all()
    return by_draft


@pytest.mark.parametrize("rule", OPEN, ids=str)
def test_each_position_has_the_law_of_one_of_the_models(rule: Rule) -> None:
    assert 0 < opened(rule).sum() < len(TARGET)


def test_bounds_hold_at_every_position_and_others_do_not() -> None:
    kl = audit(Fuzzy(0.2, "kl"), TARGET, DRAFT).kl
    assert kl.max() < 0.2
    assert audit(Fuzzy(0.25, "tv"), TARGET, DRAFT).tv.max() < 0.25
    gate = audit(KLGate(0.2), TARGET, DRAFT)
    assert gate.tv.max() < math.sqrt(0.1)
    assert gate.kl.max() > 0.2  # its KL is the other one
    assert audit("cascade:alpha=0.1", TARGET, DRAFT).kl.max() > 0.4


def test_a_cap_on_the_kl_accepts_no_less_than_the_gate_that_keeps_it() -> None:
    gate, cap = (audit(rule, TARGET, DRAFT) for rule in ("fuzzy:threshold=0.2,divergence=kl", "clamped:max_kl=0.2"))
    assert (cap.acceptance >= gate.acceptance - 1e-9).all()
    assert (cap.acceptance > gate.acceptance + 0.01).any()


def test_published_code_and_the_textbook_disagree_on_jensen_shannon() -> None:
    ours, theirs = (opened(Fuzzy(0.05, name)) for name in ("js", "js_code"))
    assert (theirs <= ours).all()  # KL from the middle is the larger here
    assert (theirs != ours).any()


def test_a_divergence_of_few_tokens_opens_more_often_and_bounds_nothing() -> None:
    few, every = Fuzzy(0.05, "tv", top=2), Fuzzy(0.05, "tv")
    assert (opened(every) <= opened(few)).all()
    assert audit(few, TARGET, DRAFT).tv.max() > 0.07
    assert (opened(Fuzzy(0.05, "tv", top=7)) == opened(every)).all()


@pytest.mark.parametrize("version", ["v1", "v2", "v3"])
@pytest.mark.parametrize("alpha", [-0.3, 0.0, 0.3, 0.8])
def test_a_token_cascade_emits_the_paper_s_row_and_its_coupling_accepts_no_less(version: str, alpha: float) -> None:
    rule = TokenCascade(alpha, version)  # type: ignore[arg-type]
    floor = TARGET.amax(-1, keepdim=True)
    floor = floor * (1 - alpha) if version == "v3" else floor - alpha
    kept = torch.where((DRAFT if version == "v1" else TARGET) >= floor, DRAFT, 0.0)
    row = kept + (1 - kept.sum(-1, keepdim=True)) * TARGET
    ours, theirs = audit(rule, TARGET, DRAFT), audit(Emitting(row), TARGET, DRAFT)
    torch.testing.assert_close(ours.output_probs, row, rtol=0, atol=EXACT)
    assert (theirs.acceptance >= ours.acceptance - EXACT).all()
    paper = TokenCascade(alpha, version, "paper")  # type: ignore[arg-type]
    for theirs in (audit(paper, TARGET, DRAFT), Audited(*enumerate_tokens(paper, TARGET, DRAFT))):
        torch.testing.assert_close(theirs.output_probs, row, rtol=0, atol=EXACT)
        coupled = torch.minimum(row, DRAFT).sum(-1)
        torch.testing.assert_close(theirs.acceptance, coupled, rtol=0, atol=EXACT)


class Audited(NamedTuple):
    output_probs: Tensor
    accepted: Tensor

    @property
    def acceptance(self) -> Tensor:
        return self.accepted.sum(-1)


def test_the_paper_s_coupling_is_no_recovery_from_the_target_and_says_so() -> None:
    rule = TokenCascade(0.3, "v3", "paper")
    numbers = judge_every_token(rule, TARGET, DRAFT)
    wrong = audit_verdicts(lambda _: numbers._replace(recovery=None), TARGET, DRAFT)
    assert ((wrong.output_probs - audit(rule, TARGET, DRAFT).output_probs).abs().amax(-1) > 0.01).any()
    assert row_rule(rule) is rule
    assert row_rule(TokenCascade(0.3)) is None
    with pytest.raises(ValueError, match="whose relaxed target does not depend"):
        Request(rule="token_cascade:alpha=0.3", verification="block")
    Request(rule=rule, verification="block", num_speculative_tokens=4)


def test_where_the_gate_is_closed_published_code_draws_and_emits_the_same() -> None:
    verified, drawn = Fuzzy(0.05), Fuzzy(0.05, closed="draw")
    ours, theirs = audit(verified, TARGET, DRAFT), audit(drawn, TARGET, DRAFT)
    enumerated, accepted = enumerate_tokens(drawn, TARGET, DRAFT)
    is_open = opened(verified)
    for law in (ours.output_probs, enumerated):
        torch.testing.assert_close(theirs.output_probs, law, rtol=0, atol=EXACT)
    torch.testing.assert_close(accepted.sum(-1), is_open.double(), rtol=0, atol=EXACT)
    assert (ours.acceptance > theirs.acceptance + 0.1)[~is_open].any()
    numbers = judge_every_token(drawn, TARGET, DRAFT)
    wrong = audit(Altered(drawn, residual_scale=1.0), TARGET, DRAFT)  # from (q - p)+ there
    assert (numbers.residual_scale.isinf() == ~is_open[:, None]).all()
    assert ((wrong.output_probs - theirs.output_probs).abs().amax(-1) > 0.01)[~is_open].any()
    assert row_rule(drawn) is None
    assert not drawn.never_stricter
    assert verified.never_stricter
    assert not pickle.loads(pickle.dumps(drawn)).never_stricter
    with pytest.raises(ValueError, match="whose relaxed target does not depend on the drafted token"):
        Request(rule=drawn, verification="block")


@pytest.mark.parametrize("rule", [*OPEN[:-1], TokenCascade(0.3), TokenCascade(0.1, "v1")], ids=str)
def test_a_temperature_is_taken_back_before_rows_are_compared(rule: Rule) -> None:
    tempered = [(rows.log() / 0.5).softmax(-1) for rows in (TARGET, DRAFT)]
    there, wrong = replace(rule, temperature=0.5), replace(rule, temperature=2.0)  # type: ignore[type-var]
    if isinstance(rule, TokenCascade):
        kept = [judge_every_token(each, *rows).relaxed_prob == 1 for each, rows in (
            (rule, (TARGET, DRAFT)), (there, tempered), (rule, tempered), (wrong, tempered))]  # fmt: skip
    else:
        kept = [on_rows(each._is_open, *rows, torch.empty(0)) for each, rows in (
            (rule, (TARGET, DRAFT)), (there, tempered), (rule, tempered), (wrong, tempered))]  # fmt: skip
    before, taken_back, not_taken, other = kept
    assert torch.equal(before, taken_back)
    assert not torch.equal(before, not_taken)
    assert not torch.equal(before, other)


def test_which_gates_need_no_more_than_the_drafted_token_beside_a_deterministic_draft() -> None:
    assert Fuzzy(0.1).drafted_only
    assert KLGate(0.1).drafted_only
    assert not Fuzzy(0.1, temperature=0.5).drafted_only
    assert not Fuzzy(0.1, top=1).drafted_only
    assert not Cascade(0.1).drafted_only


def test_figures_of_published_variants_that_pages_name() -> None:
    rows = torch.tensor([[0.6, 0.3, 0.1], [0.2, 0.3, 0.5], [0.5, 0.3, 0.2]], dtype=torch.float64)
    q, p, draft = rows
    for coupling, kept in (("draw", 0.5), ("paper", 0.55)):
        accepted = audit(f"token_cascade:alpha=0.5,coupling={coupling}", q, p).acceptance.item()
        assert accepted == pytest.approx(kept, abs=EXACT)
    tempered = draft**2 / (draft**2).sum()
    assert tempered[0].item() == pytest.approx(0.66, abs=5e-3)
    for alpha, row, follows in (
        (0.35, tempered, True),
        (0.34, tempered, False),
        (0.5, draft, True),
        (0.49, draft, False),
    ):
        assert Cascade(alpha, "chow").relaxed_target(q, row).equal(row) is follows
    for alpha, follows in ((0.5, True), (0.49, False)):
        taken_back = Cascade(alpha, "chow", temperature=0.5)
        assert taken_back.relaxed_target(q, tempered).equal(tempered) is follows


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (Cascade(0.3), Cascade(0.3, "diff")),  # without the total variation
        (Fuzzy(0.05, "kl", top=2), Fuzzy(0.05, "kl")),  # of all tokens by themselves
        (Fuzzy(0.2, "kl"), KLGate(0.2, confidence=1.0)),  # the KL the other way round
        (TokenCascade(0.3), TokenCascade(0.3, "v2")),  # a difference in the place of a factor
        (KLGate(0.2), KLGate(0.2, confidence=1.0)),  # sure targets too
    ],
    ids=str,
)
def test_a_formula_that_is_wrong_in_one_place_is_noticed(right: Rule, wrong: Rule) -> None:
    differ = 0
    for q, p in zip(TARGET, DRAFT, strict=True):
        expected = expected_numbers(right, q, p)[0]
        torch.testing.assert_close(judge_every_token(right, q, p).relaxed_prob, expected, rtol=0, atol=EXACT)
        differ += not torch.allclose(judge_every_token(wrong, q, p).relaxed_prob, expected, rtol=0, atol=EXACT)
    assert differ > 5
