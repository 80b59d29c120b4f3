"""Positions without what the target excludes: the same costs and decisions as on whole rows."""

from __future__ import annotations

import math

import pytest
import torch
from support.rules_under_test import every_rule

from cactus_decoding import SamplingParams
from cactus_decoding.core.policy.position import Position
from cactus_decoding.core.rules import parse_rule
from cactus_decoding.core.rules.base import GreedyRule
from cactus_decoding.core.sampling.rows import LazyRows
from cactus_decoding.core.types import AcceptanceRule, Proposal, StepRows

VOCABULARY = 5000
SAMPLINGS = (SamplingParams(top_k=20, top_p=0.9), SamplingParams(min_p=0.02), SamplingParams(temperature=0.7, top_k=5))


def both(seed: int) -> tuple[Position, Position]:
    """Return a position as whole rows make it, and as lazy rows do: a drawn token, a fixed one, or one beside two."""
    generator, sampling = torch.Generator().manual_seed(seed), SAMPLINGS[seed % 3]
    logits = 3 * torch.randn(4, VOCABULARY, generator=generator)
    draft = SamplingParams(top_k=40 * (seed % 2))(logits[:1] + torch.randn(1, VOCABULARY, generator=generator))
    drawn, likeliest = int(torch.multinomial(draft[0], 1, generator=generator)), int(draft.argmax())
    last = int(sampling(logits[0]).nonzero().max())
    if drawn in (likeliest, 7):
        drawn = int(draft[0].topk(3).indices[2])
    proposal = (
        Proposal([drawn], draft),
        Proposal([likeliest], None),
        Proposal([likeliest, 7, drawn], draft, [-1] * 3, [False, False, True]),
        Proposal([7], draft),  # excluded by most targets
        Proposal([7, last], draft, [-1] * 2, [False, False]),  # the same, before the last of those that are not
    )[seed % 5]
    rows = StepRows(
        logits[: len(proposal.token_ids) + 1], proposal.token_ids, proposal, *[lambda logits, _: sampling(logits)] * 2
    )
    return Position(rows, -1), Position(rows, -1, LazyRows(rows.logits, sampling))


def numbers(position: Position, rule: AcceptanceRule) -> tuple[float, torch.Tensor, torch.Tensor]:
    """Return what a rule costs there, h of the drafted token, and the law of recovery."""
    law, token = position.distribution(position.drafted), position.token_ids[position.drafted]
    given = law.probs if position.is_drawn else None
    relaxed_prob, scale, _ = verdict = position.judge(rule, given, torch.tensor([token]))
    start = verdict.recovers_from(position.target.probs).double()
    weights = start if scale.isinf().any() else (scale * start - law.probs).clamp(min=0)
    return position.cost(rule), relaxed_prob, weights / weights.sum().clamp(min=1e-300)


@every_rule()
def test_costs_and_decisions_need_the_support_only(spelling: str) -> None:
    rule = parse_rule(spelling)
    for seed in range(15):
        whole, lazy = both(seed)
        part = lazy.on_support(rule)
        if isinstance(rule, GreedyRule):
            assert part is lazy
            continue
        assert part.vocabulary < 500 < whole.vocabulary
        (cost, h, recovery), (cost_on, h_on, recovery_on) = numbers(whole, rule), numbers(part, rule)
        assert cost_on == pytest.approx(cost, abs=1e-12) or (math.isinf(cost) and math.isinf(cost_on))
        torch.testing.assert_close(h_on, h, rtol=0, atol=1e-12)
        assert part.listed is not None
        assert part.listed.token_ids is not None
        torch.testing.assert_close(recovery_on[:-1], recovery[part.listed.token_ids.long()], rtol=0, atol=1e-12)
        assert recovery_on[-1] == 0


def test_leaving_out_what_the_draft_gives_the_others_would_be_noticed() -> None:
    rule, moved = parse_rule("cactus:delta=0.3"), 0.0
    for seed in range(15):
        whole, lazy = both(seed)
        part = lazy.on_support(rule)
        if part.draft_row is not None:
            part.draft_row = part.draft_row.clone()
            part.draft_row[-1] = 0.0
            moved = max(moved, abs(part.cost(rule) - whole.cost(rule)))
    assert moved > 1e-3
