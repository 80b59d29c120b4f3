"""Logits that make a rejection sampler follow a rule, against the audit."""

import pytest
import torch
from support.decisions import greedy_rows
from support.engine_rules import GREEDY_SPELLINGS, ROWS, SPELLINGS, engine_s_sampler, relaxed_token_logit
from support.rules_under_test import every_rule
from support.tables import all_of

from cactus_decoding import audit, parse_rule
from cactus_decoding.core.policy.position import Position
from cactus_decoding.core.relaxed_logits import (
    RelaxedLogits,
    audited_nats,
    costs_of,
    relax_greedily,
    relax_rows,
    relax_tokens,
)
from cactus_decoding.core.rules.base import LiftRule


@every_rule(SPELLINGS)
def test_the_logits_make_the_sampler_follow_the_rule(spelling: str) -> None:
    rule = parse_rule(spelling)
    for target, draft in ROWS:
        logits, emitted = target.log(), torch.zeros_like(target)
        for drafted in range(len(target)):
            if draft[drafted] == 0:
                continue
            row = logits.clone()
            if isinstance(rule, LiftRule):
                row[drafted] = relax_tokens(rule, logits[drafted], logits.logsumexp(-1)).logits
            else:
                token = torch.tensor([drafted])
                row = relax_rows(rule, logits.unsqueeze(0), draft.unsqueeze(0), token).logits[0]
            emitted += draft[drafted] * engine_s_sampler(row, draft, drafted)
        assert torch.allclose(emitted, audit(rule, target, draft).output_probs, rtol=0, atol=1e-12)


@every_rule(SPELLINGS)
def test_the_logits_for_a_deterministic_draft(spelling: str) -> None:
    rule = parse_rule(spelling)
    for target, _ in ROWS:
        for drafted in range(len(target)):
            row = target.log()
            row[drafted] = relaxed_token_logit(rule, row, torch.tensor(drafted))
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@all_of("spelling", ["clamped:width=20", "ensemble:weight=1"])
def test_a_sampler_is_never_left_without_weights(spelling: str, dtype: torch.dtype) -> None:
    """It takes token 0 then, which the target excludes."""
    generator, short = torch.Generator().manual_seed(0), 0
    for _ in range(200):
        target, draft = torch.randn(2, 5, generator=generator, dtype=dtype).log_softmax(-1)
        target[0] = -torch.inf
        draft = torch.where(target > -torch.inf, draft, -torch.inf).softmax(-1)
        relaxed = parse_rule(spelling).relaxed_target(target.double().softmax(-1), draft.double())
        assert relaxed is not None
        plain = relaxed.log().to(dtype).softmax(-1)
        short += not (plain - draft).clamp(min=0).any()
        for drafted in range(1, 5):
            row = relax_rows(parse_rule(spelling), target[None], draft[None], torch.tensor([drafted])).logits[0]
            h = row.softmax(-1)
            torch.testing.assert_close(h.double(), relaxed, rtol=3e-5, atol=0)
            sure = h[drafted] / draft[drafted] >= 1
            assert sure or (h - draft).clamp(min=0).any()
            law = draft if sure else engine_s_sampler(row, draft, drafted)
            assert law[0] == 0
    assert short > 5  # as often, rows as they are leave nothing


def test_a_token_that_h_excludes_is_not_kept_where_nothing_is_left() -> None:
    target = torch.tensor([[0.0, 0.25, 0.75, 0.0]])
    draft = torch.tensor([[0.0, 0.25, 0.75, 1e-9]])
    row = relax_rows(parse_rule("clamped:width=1"), target.log(), draft, torch.tensor([3])).logits[0].softmax(-1)
    assert (row - draft[0]).clamp(min=0).nonzero().flatten().tolist() == [2]
    assert row[3] == 0
    torch.testing.assert_close(row, target[0], rtol=1e-5, atol=0)


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


@every_rule(SPELLINGS)
@pytest.mark.parametrize("one_hot", [True, False], ids=["one_hot", "probabilistic"])
def test_a_position_costs_what_the_audit_says(spelling: str, one_hot: bool) -> None:
    rule = parse_rule(spelling)
    for target, draft in ROWS:
        inside = [token for token in range(len(target)) if draft[token] > 0]
        logits = target.double().log().expand(len(inside), -1)
        probs, drafted = draft.double().expand(len(inside), -1), torch.tensor(inside)
        if one_hot or isinstance(rule, LiftRule):
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


EQUALS = torch.tensor(
    [[1.0, 2.0, 2.0, 2.0 - 1e-7, -3.0], [0.0, -0.0, 0.0, -1e-45, -torch.inf], [-2.0, -90.0, -2.0, -2.0, -2.0]]
)
"""Rows whose likeliest token has equals, or others that round to its probability."""


@every_rule(GREEDY_SPELLINGS)
def test_a_kept_token_has_the_greatest_logit_and_costs_what_the_policy_says(spelling: str) -> None:
    logits = torch.cat([EQUALS, 3 * torch.randn(40, 5, generator=torch.Generator().manual_seed(2))])
    relaxed = 0
    for drafted in range(5):
        for place, row in enumerate(logits):
            position = Position(greedy_rows(row[None], [drafted]), -1)
            rule = parse_rule(spelling).bind_position(position.remaining, position.greatest_logit)
            given = relax_greedily(rule, row[None], torch.tensor([drafted]))
            kept = rule.accepts(position.untempered, torch.tensor([drafted])).item()
            changed = row.index_fill(0, torch.tensor(drafted), given.logits.item())
            assert changed.argmax() == (drafted if kept else row.argmax()), (place, drafted)
            assert (changed == changed.max()).sum() == 1 or torch.equal(changed, row)
            assert given.conditional.item() == pytest.approx(position.cost(rule), abs=1e-6)
            assert (given.conditional.item() > 0) == (position.cost(rule) > 0) == (changed.argmax() != row.argmax())
            assert (given.target_prob.item(), given.relaxed_prob.item()) == (drafted == row.argmax(), kept)
            relaxed += given.conditional.item() > 0
    lossless = spelling in ("relaxed_greedy:margin=0", "big_little:rollback=0", "mars:ratio=1")
    assert (relaxed > 0) != lossless


def test_rows_that_are_no_distributions_keep_the_likeliest_token_only() -> None:
    for greatest in (torch.nan, torch.inf):
        row = torch.tensor([[0.0, greatest, 1.0]])
        given = relax_greedily(parse_rule("relaxed_greedy:margin=50"), row.expand(3, 3), torch.arange(3))
        assert torch.equal(given.logits.nan_to_num(), row[0].nan_to_num())
        assert given.conditional.tolist() == [0, 0, 0]
