"""Responses that are written with trees: what steps record, and what is refused."""

from __future__ import annotations

import pytest
import torch
from support.tiny_models import tiny_llama

from cactus_decoding import Drafter, Fate, ModelDrafter, NgramDrafter, Request, generate, stream
from cactus_decoding.core.types import Proposal
from cactus_decoding.lab.frontier.recording import record_rows

TREE = "static=3.2.1"


def test_records_name_each_visited_node(pair, prompts: list[str]) -> None:
    fates = set()
    for outcome in stream(pair, prompts[0], tree="static=4.2.2.1", rule="clamped:width=2", seed=3, budget=9.0):
        proposal, at = outcome.proposal, -1
        for visit in outcome.visits:
            assert proposal.parents[visit.node] == at
            assert visit.token_id == proposal.token_ids[visit.node]
            assert visit.nats is not None
            expected = outcome.rows.target_after(at)
            torch.testing.assert_close(visit.target_probs, expected)
            at = visit.node if visit.accepted else visit.matched
        assert outcome.path == [
            v.node if v.accepted else v.matched for v in outcome.visits if v.accepted or v.matched is not None
        ]
        assert outcome.all_token_ids == [
            *proposal.tokens_to(outcome.path[-1] if outcome.path else -1),
            outcome.next_token,
        ]
        assert (outcome.all_fates[-1] == Fate.BONUS) == (at is not None)
        fates |= set(outcome.fates)
    assert Fate.MATCHED in fates


def test_a_budget_is_kept_and_a_policy_followed(pair, prompts: list[str]) -> None:
    for rule in ("cactus:delta=1", "clamped:width=2"):
        asked = {"budget": 0.05, "protect": "digits", "seed": 1, "tree": "static=4.2.2.1"}
        response = generate(pair, prompts[0], rule=rule, **asked)
        assert response.metrics.nats <= 0.05
        assert response.metrics.protected > 0
        assert response.metrics.metered > 0


def test_a_margin_lets_almost_as_likely_tokens_through(pair, prompts: list[str]) -> None:
    response = generate(pair, prompts[0], temperature=0.0, rule="relaxed_greedy:margin=3", tree=TREE, budget=2.0)
    assert response.metrics.relaxed > 0
    assert 0 < response.metrics.nats <= 2.0


@pytest.mark.parametrize(
    ("settings", "wrong"),
    [
        ({"verification": "block"}, "block verification is for chains; use verification='joint'"),
        ({"verification": "joint", "rule": "cactus:delta=1"}, "joint verification needs a rule whose relaxed target"),
        ({"verification": "joint", "rule": "clamped:width=1"}, "as many children everywhere"),
        (
            {"verification": "joint", "rule": "clamped:width=1", "tree": "best_first,nodes=8"},
            "as many children everywhere, .* but it is best_first,nodes=8",
        ),
        ({"verification": "joint", "tree": "static=2.2,drawn=2"}, "at most one drawn child"),
        ({"verification": "joint", "tree": None, "num_speculative_tokens": 4}, "verification='joint' is for trees"),
    ],
)
def test_what_does_not_go_with_trees_is_refused(settings: dict, wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        Request.from_dict({"tree": TREE} | settings)


def test_relaxed_rules_go_with_even_trees() -> None:
    Request.from_dict({"rule": "clamped:width=1", "verification": "joint", "tree": "static=2.2.2"})
    asked = Request(tree=TREE).as_dict()
    assert (asked["tree"], asked["num_speculative_tokens"]) == (TREE, 3)


class Chains(Drafter):
    def propose(self, token_ids, limit, to_probs, generator) -> Proposal:
        return Proposal([], None)


def test_drafters_of_chains_are_refused(pair, prompts: list[str]) -> None:
    drafter, pair.drafter = pair.drafter, Chains()
    try:
        with pytest.raises(ValueError, match="a Chains proposes chains only, but tree is "):
            generate(pair, prompts[0], tree=TREE)
    finally:
        pair.drafter = drafter


def test_a_text_that_is_looked_up_is_verified_as_a_whole_only_losslessly() -> None:
    """What is proposed at a position depends on where the step began, and the clamped ratio's h on what is proposed."""
    request = Request(rule="clamped:width=1", verification="joint", tree="static=2.2.2")
    with pytest.raises(ValueError, match="joint verification of a relaxed rule needs a draft model"):
        request.check_drafter(NgramDrafter())
    request.replace(rule="lossless").check_drafter(NgramDrafter())
    request.replace(verification="token").check_drafter(NgramDrafter())
    request.check_drafter(ModelDrafter(tiny_llama(1)))


def test_seeds_repeat_with_trees_that_grow(pair, prompts: list[str]) -> None:
    shape = "best_first,nodes=10,lookup=3"
    first, again, other = (generate(pair, prompts[0], tree=shape, seed=seed).token_ids for seed in (3, 3, 4))
    assert first == again != other


def test_a_recording_of_rows_reads_chains_only(pair, prompts: list[str]) -> None:
    with pytest.raises(ValueError, match="a recording of rows reads chains of proposals only, but tree is "):
        record_rows(pair, prompts, Request(tree=TREE), positions=1)
