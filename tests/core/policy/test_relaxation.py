"""What a policy makes of a rule: the target's own law where it forbids, the rule's where it does not. Exactly."""

from __future__ import annotations

import json

import pytest
import torch
from support.decisions import emitted_by, plan, protected_mass
from support.exact_enumeration import enumerate_tokens, make_rows
from support.rules_under_test import SPELLINGS, every_rule

from cactus_decoding import Lossless, Pair, audit, parse_rule, stream
from cactus_decoding.core.policy.protection import Protection
from cactus_decoding.core.policy.relaxation import RelaxationPolicy
from cactus_decoding.core.policy.vocabulary import Vocabulary
from cactus_decoding.core.rules.base import GreedyRule
from cactus_decoding.core.types import AcceptanceRule, Verdict

EXACT = 1e-12
WORDS = Vocabulary(("1", "a", "b", "2", "c"))
ROWS = 40
TARGET, DRAFT = make_rows(5, ROWS, 11)
POLICY = RelaxationPolicy(Protection("digits", 0.3))
PROTECTED = TARGET[:, [0, 3]].sum(-1) > 0.3
"""Where the policy lets no rule judge."""


class ByToken:
    """Wrong: protects where the *drafted* token is a digit, so that h depends on what was drafted."""

    def __init__(self, rule: AcceptanceRule) -> None:
        self.rule = rule

    def judge(self, target_probs, draft_probs, token_ids):
        relaxed, lossless = (r.judge(target_probs, draft_probs, token_ids)[:2] for r in (self.rule, Lossless()))
        digit = torch.tensor([text.isdigit() for text in WORDS.texts])[token_ids]
        return Verdict(*(torch.where(digit, a, b) for a, b in zip(lossless, relaxed, strict=True)))


@every_rule([text for text in SPELLINGS if not isinstance(parse_rule(text), GreedyRule)])
def test_the_emitted_law_is_the_targets_where_protected_and_the_rules_elsewhere(spelling: str) -> None:
    rule = parse_rule(spelling)
    assert 5 < PROTECTED.sum() < ROWS - 5
    for limit in (None, float("inf")):
        made = plan(rule, TARGET, DRAFT, torch.zeros(ROWS).long(), limit=limit, fitted=POLICY.fit_vocabulary(WORDS))
        assert made.protected == PROTECTED.tolist()
        expected = torch.where(PROTECTED.unsqueeze(1), TARGET, enumerate_tokens(rule, TARGET, DRAFT)[0])
        assert (emitted_by(made.rule, TARGET, DRAFT) - expected).abs().max() < EXACT
    assert not any(made.fell_back)
    costs = torch.tensor(made.costs, dtype=torch.float64)
    expected_costs = torch.where(PROTECTED, 0.0, audit(rule, TARGET, DRAFT).kl.clamp(min=0))
    assert torch.allclose(costs, expected_costs, rtol=0, atol=1e-9)
    assert costs[PROTECTED].eq(0).all()


def test_looking_at_the_drafted_token_would_move_the_law() -> None:
    emitted, _ = enumerate_tokens(ByToken(parse_rule("clamped:width=2")), TARGET, DRAFT)
    wrong = (emitted - TARGET).abs().sum(-1)[PROTECTED]
    assert wrong.max() > 0.05


# --- in responses ---

PROMPT = "Question: Tom has 4 pens. He buys 2 more pens. How many pens does he have now?\nAnswer:"
SETTINGS = [
    {"rule": "cactus:delta=1"},
    {"rule": "clamped:width=3", "budget": 2.0},
    {"rule": "clamped:width=3", "verification": "block"},
    {"rule": "clamped:width=3", "verification": "block", "budget": 2.0},
    {"rule": "top_k:k=3", "budget": 2},
    {"rule": "relaxed_greedy:margin=3", "temperature": 0},
    {"rule": "clamped:width=2", "budget_nats": 1, "expected_tokens": 40},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: "-".join(map(str, settings.values())))
def test_no_protected_position_is_relaxed(pair: Pair, settings: dict) -> None:
    vocabulary = Vocabulary.of(pair.tokenizer, pair.target.model.config.vocab_size)
    digits = Protection("digits").mask(vocabulary).nonzero().squeeze(1)
    protected = open_ = relaxed = 0
    for seed in range(6):
        response = stream(pair, PROMPT, protect="digits", seed=seed, **settings)
        for outcome in response:
            for visit in outcome.visits:
                greedy = settings.get("temperature") == 0
                judged_on = visit.rows.untempered_of(visit.node) if greedy else visit.target_probs
                mass = protected_mass(judged_on, digits).item()
                assert visit.protected == (mass > 0.01)
                if settings.get("verification") != "block":  # there, tokens stand for each other
                    assert not (visit.protected and visit.relaxed)
                assert not (visit.protected and (visit.fell_back or visit.nats))
                if visit.protected:
                    assert visit.rule == Lossless()
                protected, open_ = protected + visit.protected, open_ + (not visit.protected)
                relaxed += visit.relaxed
        assert response.metrics.protected >= 1
    assert protected > 10
    assert open_ > 10
    assert relaxed >= 1


def test_nothing_is_relaxed_before_a_number_of_tokens(pair: Pair) -> None:
    for seed in range(5):
        texts = {}
        for name, settings in {
            "lossless": {"rule": "lossless"},
            "some": {"rule": "cactus:delta=1", "lossless_tokens": 12},
            "all": {"rule": "cactus:delta=1", "lossless_tokens": 500},
            "none": {"rule": "cactus:delta=1"},
        }.items():
            texts[name] = stream(pair, PROMPT, seed=seed, **settings)
            relaxed_at = [
                i
                for outcome in texts[name]
                for i, fate in enumerate(outcome.all_fates, start=len(texts[name].token_ids) - outcome.num_emitted)
                if fate == "relaxed"
            ]
            if name == "some":
                assert all(i >= 12 for i in relaxed_at)
        assert texts["some"].token_ids[:12] == texts["lossless"].token_ids[:12]
        assert texts["all"].token_ids == texts["lossless"].token_ids


def test_only_what_stands_between_marks_is_relaxed(pair: Pair) -> None:
    relaxed = 0
    for seed in range(8):
        response = stream(pair, PROMPT, rule="cactus:delta=1", relax_within=("\n", "="), seed=seed)
        text = ""
        for outcome in response:
            for token, fate in zip(outcome.token_ids, outcome.fates, strict=True):
                if fate == "relaxed":
                    relaxed += 1
                    assert (PROMPT + text).rfind("\n") > (PROMPT + text).rfind("=")
                text += pair.tokenizer.decode([token])
    assert relaxed >= 1


@pytest.mark.parametrize("marks", [["<a>", "</a>"], [7, 8], [[7, 9], 8]])
def test_a_request_with_a_policy_goes_to_json_and_back(marks: list) -> None:
    from cactus_decoding.core.request import Request

    request = Request.from_dict(
        {"protect": "digits", "protect_threshold": 0.05, "lossless_tokens": 3, "relax_within": marks}
    )
    assert request.policy.protection == Protection("digits", 0.05)
    assert request.as_dict()["relax_within"] == json.loads(json.dumps(marks))
    assert Request.from_dict(request.as_dict()) == request
