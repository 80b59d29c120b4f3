"""What a step records: who judged each visited position, at what cost, and from which rows."""

from __future__ import annotations

import pytest
import torch
from support.tiny_pair import rows_after, tiny_pair

from cactus_decoding import (
    Budget,
    ClampedRatio,
    Fate,
    Lossless,
    Proposal,
    Request,
    SamplingParams,
    audit,
    parse_rule,
    stream,
)
from cactus_decoding.core.rules.base import verdict_on

PROMPT = "Tom has 4 pens and gets 2 more."


def outcomes(**settings):
    pair = tiny_pair()
    prompt_ids = pair.tokenizer(PROMPT).input_ids
    steps = list(stream(pair, PROMPT, max_new_tokens=30, seed=3, **settings))
    starts, ids = [], list(prompt_ids)
    for step in steps:
        starts.append(list(ids))
        ids += step.token_ids
    return pair, list(zip(starts, steps, strict=True))


def test_visits_are_the_accepted_positions_and_the_first_rejected_one():
    _, steps = outcomes(rule="cactus:delta=0.01", top_k=3)
    for _, step in steps:
        accepted = [visit.accepted for visit in step.visits]
        assert accepted == [True] * step.num_accepted + [False] * (len(accepted) - step.num_accepted)
        assert len(accepted) == min(step.num_accepted + 1, step.num_drafted)
        assert [visit.token_id for visit in step.visits] == step.proposal.token_ids[: len(accepted)]
        assert step.path == list(range(step.num_accepted))
        assert step.all_fates[-1] == (Fate.BONUS if step.num_accepted == step.num_drafted else Fate.RECOVERED)
        assert step.all_fates.count(Fate.RELAXED) == step.num_relaxed
    assert {visit.accepted for _, step in steps for visit in step.visits} == {True, False}


@pytest.mark.parametrize("settings", [{}, {"budget": 5.0}, {"verification": "block", "rule": "clamped:width=1"}])
def test_rows_are_those_of_a_pass_over_the_text_so_far(settings):
    settings = {"rule": "clamped:width=1", "top_k": 30, **settings}
    pair, steps = outcomes(**settings)
    for before, step in steps[:4]:
        for visit in step.visits:
            ids = [*before, *step.proposal.token_ids[: visit.node]]
            # the norms of these models work in float32, so that blocks and single passes part in the seventh digit
            target, draft, untempered = rows_after(pair, ids, SamplingParams(top_k=30))
            torch.testing.assert_close(visit.target_probs, target, rtol=0, atol=1e-6)
            torch.testing.assert_close(visit.draft_probs, draft, rtol=0, atol=1e-6)
            kept = step.rows.untempered_of(visit.node)
            torch.testing.assert_close(kept, untempered, rtol=0, atol=1e-6)


def test_two_numbers_are_the_rule_s_own():
    rule = parse_rule("cactus:delta=0.5")
    _, steps = outcomes(rule=rule)
    visits = [visit for _, step in steps for visit in step.visits]
    for visit in visits:
        drafted = torch.tensor([visit.token_id])
        expected = rule.judge(visit.target_probs, visit.draft_probs, drafted)
        assert verdict_on(visit) == expected
        assert visit.rule is rule
        assert visit.nats is None
        assert not visit.fell_back


def test_a_metered_step_says_what_each_position_cost_and_where_it_fell_back():
    _, steps = outcomes(rule="cactus:delta=1.0", budget=0.3)
    spent, fell_back = 0.0, 0
    for _, step in steps:
        for visit in step.visits:
            cost = audit("cactus:delta=1.0", visit.target_probs, visit.draft_probs).kl.clamp(min=0).item()
            if visit.fell_back:
                assert visit.nats == 0
                assert isinstance(visit.rule, Lossless)
                assert spent + cost > 0.3
            else:
                assert visit.nats == pytest.approx(cost, abs=1e-12)
                spent += visit.nats
            fell_back += visit.fell_back
    assert fell_back > 0
    assert 0 < spent <= 0.3


def test_a_paced_step_names_the_width_of_its_moment():
    _, steps = outcomes(rule="clamped:width=1.0", budget=Budget(nats=0.5, expected_tokens=30))
    widths = [visit.rule.width for _, step in steps for visit in step.visits if isinstance(visit.rule, ClampedRatio)]
    assert widths[0] == pytest.approx(1.0)
    assert len(set(widths)) > 3
    for _, step in steps:
        assert len({str(visit.rule) for visit in step.visits if not visit.fell_back}) <= 1
        for visit in step.visits:
            if not visit.fell_back:
                cost = audit(visit.rule, visit.target_probs, visit.draft_probs).kl.clamp(min=0).item()
                assert visit.nats == pytest.approx(cost, abs=1e-9)


def test_a_tree_of_proposals_is_not_taken_for_a_chain():
    verifier = Request().verifier(lambda logits, _: logits.softmax(-1), lambda logits, _: logits.softmax(-1))
    logits, ids = torch.zeros(3, 5), [1, 3, 4]
    for parents, paths in (([-1, -1], [[], [0], [1]]), ([-1, 0], [[], [0], [0, 1]])):
        seen = []
        for seed in range(60):
            generator = torch.Generator().manual_seed(seed)
            _, outcome = verifier(verifier.begin(), logits, ids, Proposal([3, 4], None, parents), generator)
            assert outcome.num_drafted == 2
            assert len(outcome.all_fates) == len(outcome.path) + 1
            seen.append(outcome.path)
        assert sorted(map(tuple, paths)) == sorted(set(map(tuple, seen)))


def test_emitted_tokens_are_cut_where_the_response_ends():
    pair = tiny_pair()
    steps = list(stream(pair, PROMPT, max_new_tokens=9, seed=1, rule="cactus:delta=30"))
    assert steps[-1].finish_reason == "length"
    assert all(step.finish_reason is None for step in steps[:-1])
    assert sum(step.num_emitted for step in steps) == 9
    for step in steps:
        assert step.token_ids == step.all_token_ids[: step.num_emitted]
        assert step.fates == step.all_fates[: step.num_emitted]
        assert min(step.draft_seconds, step.target_seconds, step.verify_seconds) >= 0
