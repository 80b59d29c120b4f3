"""Rules that leave whole positions to the draft: what their pages say of them, exactly."""

from __future__ import annotations

import math

import pytest
import torch
from support.rules_under_test import expected_numbers
from torch import Tensor

from cactus_decoding import audit
from cactus_decoding.auditing import judge_every_token
from cactus_decoding.rules import Cascade, Fuzzy, KLGate, Rule, TokenCascade
from cactus_decoding.rules.base import EmittedRows

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
    ours, theirs = audit(rule, TARGET, DRAFT), audit(EmittedRows(row), TARGET, DRAFT)
    torch.testing.assert_close(ours.output_probs, row, rtol=0, atol=EXACT)
    assert (theirs.acceptance >= ours.acceptance - EXACT).all()


def test_figures_of_published_variants_that_pages_say_are_not_offered() -> None:
    rows = torch.tensor([[0.6, 0.3, 0.1], [0.2, 0.3, 0.5], [0.5, 0.3, 0.2]], dtype=torch.float64)
    q, p, draft = rows
    ours = audit(TokenCascade(0.5), q, p)
    assert ours.acceptance.item() == pytest.approx(0.5, abs=EXACT)
    assert torch.minimum(ours.output_probs, p).sum().item() == pytest.approx(0.55, abs=EXACT)  # the paper's coupling
    tempered = draft**2 / (draft**2).sum()
    assert tempered[0].item() == pytest.approx(0.66, abs=5e-3)
    for alpha, row, follows in (
        (0.35, tempered, True),
        (0.34, tempered, False),
        (0.5, draft, True),
        (0.49, draft, False),
    ):
        assert Cascade(alpha, "chow").relaxed_target(q, row).equal(row) is follows
    # FLy's code: the drafted token 0 is kept if either draw of the target is it, and else the first draw comes
    drawn = [((first, second), draft[first] * draft[second]) for first in range(3) for second in range(3)]
    emitted = sum(chance for both, chance in drawn if 0 in both)
    assert float(emitted) == pytest.approx(0.75, abs=EXACT)


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
