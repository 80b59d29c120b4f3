"""Logits that make a rejection sampler follow a rule, against the audit."""

from __future__ import annotations

import pytest
import torch
from support.engine_rules import ROWS, SPELLINGS, engine_s_sampler

from cactus_decoding import audit, parse_rule
from cactus_decoding.integrations.common.relaxed_logits import relax_rows, relax_tokens

every_rule = pytest.mark.parametrize("spelling", SPELLINGS)


@every_rule
def test_the_logits_make_the_sampler_follow_the_rule(spelling: str) -> None:
    rule = parse_rule(spelling)
    for target, draft in ROWS:
        logits, emitted = target.log(), torch.zeros_like(target)
        for drafted in range(len(target)):
            if draft[drafted] == 0:
                continue
            row = logits.clone()
            if rule.lifts_one_token:
                row[drafted] = relax_tokens(rule, logits[drafted], logits.logsumexp(-1)).logits
            else:
                token = torch.tensor([drafted])
                row = relax_rows(rule, logits.unsqueeze(0), draft.unsqueeze(0), token).logits[0]
            emitted += draft[drafted] * engine_s_sampler(row, draft, drafted)
        assert torch.allclose(emitted, audit(rule, target, draft).output_probs, rtol=0, atol=1e-12)


@every_rule
def test_the_logits_for_a_deterministic_draft(spelling: str) -> None:
    rule = parse_rule(spelling)
    for target, _ in ROWS:
        for drafted in range(len(target)):
            row = target.log()
            row[drafted] = relax_tokens(rule, row[drafted], row.logsumexp(-1)).logits
            expected = audit(rule, target, draft_token_ids=torch.tensor(drafted)).output_probs
            point = torch.zeros_like(target)
            point[drafted] = 1.0
            assert torch.allclose(engine_s_sampler(row, point, drafted), expected, rtol=0, atol=1e-12)


def test_a_wrong_logit_is_noticed() -> None:
    target, draft = ROWS[0]
    drafted = int(draft.argmax())
    row = target.log()
    row[drafted] = relax_tokens(parse_rule("cactus:delta=1.05"), row[drafted], row.logsumexp(-1)).logits
    point = torch.nn.functional.one_hot(torch.tensor(drafted), len(target)).double()
    expected = audit("cactus:delta=1", target, draft_token_ids=torch.tensor(drafted)).output_probs
    assert not torch.allclose(engine_s_sampler(row, point, drafted), expected, rtol=0, atol=1e-4)


def test_certain_and_impossible_tokens_keep_their_logits() -> None:
    rule = parse_rule("cactus:delta=5")
    certain = torch.tensor([3.0, -torch.inf])
    assert relax_tokens(rule, certain, certain.logsumexp(-1)).logits.tolist() == certain.tolist()
    row = torch.tensor([4.0, 0.0])
    row[0] = relax_tokens(rule, row[0], row.logsumexp(-1)).logits  # g is 1
    assert row.softmax(-1).tolist() == [1.0, pytest.approx(0.0, abs=1e-15)]


def test_rules_that_lift_one_token_have_no_row_of_their_own() -> None:
    with pytest.raises(ValueError, match="its h depends on the drafted token"):
        relax_rows(parse_rule("cactus:delta=1"), torch.zeros(1, 2), torch.full((1, 2), 0.5), torch.tensor([0]))
