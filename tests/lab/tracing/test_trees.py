"""Traces of responses that are written with trees: each step's tree, and positions that stand on its path."""

from __future__ import annotations

import math

import pytest
import torch
from support.tables import all_of
from support.tiny_pair import tiny_pair
from support.traces import PROMPT

from cactus_decoding import Fate, Request, audit, load_pair, stream
from cactus_decoding.lab.evaluation.engines.engine import AuditedCosts
from cactus_decoding.lab.tracing import Trace, trace_response, what_if

WAYS = {
    "lossless": {},
    "match": {"rule": "clamped:width=2"},
    "a rule that looks at the drafted token, limited": {"rule": "cactus:delta=0.5", "budget": 2.0},
    "the whole row": {"rule": "ensemble:weight=0.4"},
    "protected": {"rule": "clamped:width=2", "protect": "digits"},
    "two drawn": {"rule": "clamped:width=2", "tree": "static=3.2,drawn=2"},
    "none drawn": {"rule": "cactus:delta=1", "tree": "static=3.2,drawn=0"},
    "temperature 0": {"temperature": 0, "rule": "relaxed_greedy:margin=1", "budget": math.inf},
    "joint": {"rule": "clamped:width=1", "verification": "joint", "tree": "static=2.2.2"},
    "grown, with look-up": {"rule": "clamped:width=2", "tree": "best_first,nodes=9,lookup=3"},
    "grown, jointly": {"verification": "joint", "tree": "best_first,nodes=9"},
}


@pytest.fixture(scope="module", params=["tiny", "bundled"])
def pair(request):
    return tiny_pair() if request.param == "tiny" else load_pair()


@all_of("name", WAYS)
def test_a_tree_is_the_proposal_with_what_became_of_it_and_positions_add_up(pair, name: str) -> None:
    request = Request.from_dict({"tree": "static=3.2.1", "seed": 3, "max_new_tokens": 40} | WAYS[name])
    trace = trace_response(pair, PROMPT, request, keep_rows=True)
    counted = sum((step.metrics() for step in trace.steps[1:]), trace.steps[0].metrics())
    for count in ("steps", "drafted", "accepted", "relaxed", "recovered", "bonus", "generated", "metered", "fell_back"):
        assert getattr(counted, count) == getattr(trace.metrics, count), count
    assert counted.nats == pytest.approx(trace.metrics.nats, abs=1e-12)
    for step, outcome in zip(trace.steps, stream(pair, PROMPT, request), strict=True):
        check_tree(step, outcome)
        check_positions(step, outcome, one_by_one=request.verification == "token")
        costs = AuditedCosts()
        costs.add(outcome)
        assert sum(position.emitted_nats for position in step.positions) == pytest.approx(costs.nats, abs=1e-9)
        if "temperature" not in WAYS[name]:
            assert sum(position.tv for position in step.positions) == pytest.approx(costs.tv, abs=1e-9)
    if name in ("match", "a rule that looks at the drafted token, limited", "the whole row"):
        check_what_any_rule_would_have_emitted(visited(trace))


def check_tree(step, outcome) -> None:
    proposal = outcome.proposal
    assert [node.token_id for node in step.tree] == (proposal.token_ids if proposal.branches else [])
    if not step.tree:
        return
    assert [node.parent for node in step.tree] == proposal.parents
    assert [node.drawn for node in step.tree] == proposal.drawn
    path = [place for place, node in enumerate(step.tree) if node.fate in ("accepted", "relaxed", "matched")]
    assert path == sorted(outcome.path)
    assert [step.tree[place].fate for place in outcome.path] == [str(fate) for fate in outcome.all_fates[:-1]]
    rejected = [place for place, node in enumerate(step.tree) if node.fate == "rejected"]
    assert rejected == sorted(visit.node for visit in outcome.visits if visit.node not in outcome.path)
    for visit, position in zip(outcome.visits, step.positions, strict=False):
        node = step.tree[visit.node]
        assert (node.rule, node.nats) == (str(visit.rule), position.emitted_nats)
        assert visit.nats in (None, position.emitted_nats)
    for node in step.tree:
        row = proposal.probs[sorted(set(proposal.parents)).index(node.parent)]
        assert node.draft_prob == pytest.approx(row[node.token_id].item(), abs=1e-5)  # passes round differently


def check_positions(step, outcome, *, one_by_one: bool) -> None:
    assert [position.token_id for position in step.positions] == outcome.all_token_ids
    assert [position.fate for position in step.positions] == outcome.all_fates
    for place, position in enumerate(step.positions):
        expected = outcome.rows.target_after([-1, *outcome.path][place])
        listed = {one.token_id: one.target for one in position.candidates}
        assert listed[position.token_id] == pytest.approx(expected[position.token_id].item(), abs=1e-7)
        assert (position.acceptance is None) == (not one_by_one or place >= len(outcome.visits))


def check_what_any_rule_would_have_emitted(positions) -> None:
    for position in positions:
        rows = position.rows
        fixed = torch.tensor(rows.fixed_token_ids, dtype=torch.long)
        for rule in dict.fromkeys([position.rule, "lossless", "cactus:delta=0.1", "clamped:width=0.5", "typical"]):
            seen = what_if(rows, rule)
            draft = rows.draft.dense() if rows.draft is not None else None
            expected = audit(rule, rows.target.dense(), draft, fixed_token_ids=fixed)
            torch.testing.assert_close(seen.emitted, expected.output_probs, atol=1e-12, rtol=0)
            assert seen.acceptance == pytest.approx(expected.acceptance.item(), abs=1e-12)
            if rule == position.rule:
                assert position.emitted_nats == pytest.approx(max(expected.kl.item(), 0), abs=1e-9)
                assert position.tv == pytest.approx(expected.tv.item(), abs=1e-12)


def test_a_matched_token_says_what_was_drafted_in_its_place(pair) -> None:
    trace = trace_response(pair, PROMPT, tree="static=4.4", seed=1, max_new_tokens=60)
    matched = [position for position in visited(trace) if position.fate is Fate.MATCHED]
    assert matched
    assert all(position.drafted_id != position.token_id for position in matched)


def visited(trace: Trace):
    return [position for position in trace.positions if position.fate is not Fate.BONUS and position.rows is not None]
