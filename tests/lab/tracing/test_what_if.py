"""One position: what a rule does there, against enumeration and sums over the rows."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from support.exact_enumeration import enumerate_tokens, fates, paired_rows
from support.rules_under_test import SPELLINGS, every_rule
from support.tables import all_of
from support.traces import kl
from torch.nn.functional import one_hot

from cactus_decoding import audit, parse_rule
from cactus_decoding.core.rules.base import GreedyRule, row_rule
from cactus_decoding.core.sampling.rows import SparseProbs
from cactus_decoding.lab.tracing import PositionRows, what_if

ORDINARY = tuple(text for text in SPELLINGS if not isinstance(parse_rule(text), GreedyRule))


def kept(target, draft, drafted, untempered=None):
    rows = [None if row is None else SparseProbs.keep(row) for row in (target, draft, untempered)]
    return PositionRows(drafted, rows[0], rows[1], rows[2])


@every_rule(ORDINARY, "text")
def test_a_position_is_what_enumeration_says(text):
    rule = parse_rule(text)
    target, draft = (rows[:24] for rows in paired_rows()[0])
    output, accepted = enumerate_tokens(rule, target, draft)
    keeps, recovery = fates(rule, target, draft)
    for i, (q, p) in enumerate(zip(target, draft, strict=True)):
        for n in p.nonzero().squeeze(1).tolist():
            seen = what_if(kept(q, p, n), rule)
            assert seen.rule == str(rule)
            torch.testing.assert_close(seen.emitted, output[i], atol=1e-11, rtol=0)
            assert seen.acceptance == pytest.approx(accepted[i].sum().item(), abs=1e-11)
            assert seen.acceptance_prob == pytest.approx(keeps[i, n].item(), abs=1e-11)
            assert seen.tv == pytest.approx((output[i] - q).abs().sum().item() / 2, abs=1e-11)
            if row_rule(rule) is not None:
                torch.testing.assert_close(seen.relaxed, seen.emitted, atol=1e-9, rtol=0)
            elif seen.acceptance_prob < 1 - 1e-9:  # h alone says what is recovered
                weights = seen.relaxed if math.isinf(seen.residual_scale) else (seen.relaxed - p).clamp(min=0)
                if weights.sum() > 1e-9:
                    torch.testing.assert_close(weights / weights.sum(), recovery[i, n], atol=1e-9, rtol=0)


@every_rule(ORDINARY, "text")
@all_of("num_fixed", [1, 2])
def test_beside_tokens_that_are_proposed_in_any_case_it_is_what_an_audit_says(text, num_fixed):
    rule = parse_rule(text)
    for q, p in zip(*(rows[:12] for rows in paired_rows()[0]), strict=True):
        fixed = p.topk(num_fixed).indices
        expected = audit(rule, q, p, fixed_token_ids=fixed)
        alone = audit(rule, q, fixed_token_ids=fixed)
        for rows, audited in (
            (PositionRows(0, SparseProbs.keep(q), SparseProbs.keep(p), None, tuple(fixed.tolist())), expected),
            (PositionRows(int(fixed[0]), SparseProbs.keep(q), None, None, tuple(fixed.tolist())), alone),
        ):
            for n in {*p.nonzero().squeeze(1).tolist()} if rows.draft else {int(fixed[0])}:
                seen = what_if(replace(rows, drafted_id=n), rule)
                torch.testing.assert_close(seen.emitted, audited.output_probs, atol=1e-12, rtol=0)
                assert seen.acceptance == pytest.approx(audited.acceptance.item(), abs=1e-12)
                assert seen.tv == pytest.approx(audited.tv.item(), abs=1e-12)


@all_of("text", ["lossless", "cactus:delta=0.1", "clamped:width=0.5", "typical", "top_k:k=2"])
def test_nats_are_sums_over_the_rows(text):
    target, draft = paired_rows()[1]
    for q, p in zip(target[:20], draft[:20], strict=True):
        seen = what_if(kept(q, p, int(p.argmax())), text)
        if ((q == 0) & (seen.relaxed > 0)).any():
            assert math.isinf(seen.conditional_nats)
        else:
            assert seen.conditional_nats == pytest.approx(max(kl(seen.relaxed, q), 0), abs=1e-10)
        assert seen.emitted_nats == pytest.approx(max(kl(seen.emitted, q), 0), abs=1e-10)


def test_given_a_deterministic_draft_the_condition_always_holds():
    target, _ = paired_rows()[1]
    for q in target[:6]:
        for n in q.nonzero().squeeze(1).tolist():
            for rule in ("cactus:delta=0.3", "cactus:delta=0.3,solver=exact", "clamped:width=1"):
                seen = what_if(kept(q, None, n), rule)
                torch.testing.assert_close(seen.relaxed, seen.emitted, atol=1e-9, rtol=0)
                assert seen.conditional_nats == pytest.approx(seen.emitted_nats, abs=1e-8)
                assert what_if(kept(q, one_hot(torch.tensor(n), len(q)).double(), n), rule).acceptance_prob == (
                    pytest.approx(seen.acceptance_prob, abs=1e-9)
                )


def test_relaxed_greedy_gives_up_log_probability():
    untempered = torch.tensor([0.5, 0.4, 0.1], dtype=torch.float64)
    target = torch.tensor([1.0, 0.0, 0.0])
    rows = {n: kept(target, None, n, untempered) for n in range(3)}
    seen = [what_if(rows[n], "relaxed_greedy:margin=0.3") for n in range(3)]
    assert [one.acceptance_prob for one in seen] == [1, 1, 0]
    assert [one.emitted.argmax().item() for one in seen] == [0, 1, 0]
    assert [one.emitted_nats for one in seen] == pytest.approx([0, math.log(5 / 4), 0])
    assert [one.tv for one in seen] == [0, 1, 0]
    drawn = what_if(kept(target, torch.tensor([0.2, 0.3, 0.5]), 1, untempered), "relaxed_greedy:margin=0.3")
    assert drawn.emitted.tolist() == pytest.approx([0.7, 0.3, 0])
    assert drawn.emitted_nats == pytest.approx(0.3 * math.log(5 / 4))
    assert drawn.conditional_nats == pytest.approx(math.log(5 / 4))
    with pytest.raises(ValueError, match="relaxed_greedy is a rule for temperature 0"):
        what_if(kept(untempered, None, 0), "relaxed_greedy:margin=0.3")


def test_what_is_no_distribution_has_no_conditional_nats():
    class Halved:
        def judge(self, target_probs, draft_probs, token_ids):
            verdict = parse_rule("lossless").judge(target_probs, draft_probs, token_ids)
            return verdict._replace(residual_scale=verdict.residual_scale / 2)

    half = torch.tensor([0.5, 0.5])
    assert math.isnan(what_if(kept(half, half, 0), Halved()).conditional_nats)
