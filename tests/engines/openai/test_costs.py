"""What a position costs, against the audit."""

from __future__ import annotations

import pytest
import torch
from support.engine_rules import ROWS, SPELLINGS
from support.rules_under_test import every_rule

from cactus_decoding import audit, parse_rule
from cactus_decoding.engines.openai.relaxed_logits import (
    RelaxedLogits,
    audited_nats,
    costs_of,
    relax_rows,
    relax_tokens,
)


@every_rule(SPELLINGS)
@pytest.mark.parametrize("one_hot", [True, False], ids=["one_hot", "probabilistic"])
def test_a_position_costs_what_the_audit_says(spelling: str, one_hot: bool) -> None:
    rule = parse_rule(spelling)
    for target, draft in ROWS:
        inside = [token for token in range(len(target)) if draft[token] > 0]
        logits = target.double().log().expand(len(inside), -1)
        probs, drafted = draft.double().expand(len(inside), -1), torch.tensor(inside)
        if one_hot or rule.lifts_one_token:
            relaxed = relax_tokens(rule, logits[range(len(inside)), inside], logits.logsumexp(-1), (logits, drafted))
        else:
            relaxed = relax_rows(rule, logits, probs, drafted)
        if one_hot:
            nats = costs_of(relaxed, None, None).emitted
            expected = audit(rule, logits.softmax(-1), draft_token_ids=drafted)
        else:
            audited = torch.arange(len(inside)), audited_nats(rule, logits, probs)
            costs = costs_of(relaxed, probs[range(len(inside)), inside], audited)
            nats, expected = costs.emitted, audit(rule, logits.softmax(-1), probs / probs.sum(-1, keepdim=True))
            accepted = (draft[inside] * costs.acceptance).sum()
            assert torch.allclose(accepted, expected.acceptance[0], rtol=0, atol=1e-9)
        assert torch.allclose(nats, expected.kl.clamp(min=0), rtol=0, atol=1e-9)


def test_what_nobody_audited_costs_no_one_knows_what() -> None:
    half = torch.tensor([0.5, 0.5]).double()
    lifted = RelaxedLogits(torch.zeros(2), half, 1.2 * half, 0.1 * half)  # one logit each
    assert costs_of(lifted, half, None).emitted.tolist() == [torch.inf] * 2
    some = torch.tensor([1]), torch.tensor([0.25]).double()
    assert costs_of(lifted, half, some).emitted.tolist() == [torch.inf, 0.25]


def test_rows_that_are_no_distributions_do_not_raise() -> None:
    rule, logits = parse_rule("cactus:delta=1"), torch.zeros(2, 3)
    assert audited_nats(rule, logits, torch.zeros(2, 3)).tolist() == [torch.inf] * 2
    assert audited_nats(rule, logits * torch.nan, torch.ones(2, 3)).tolist() == [torch.inf] * 2
    assert audited_nats(rule, logits[:0], torch.ones(0, 3)).tolist() == []
