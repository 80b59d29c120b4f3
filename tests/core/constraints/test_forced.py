"""Tokens that a constraint forces are proposed without the draft, always kept, and change no distribution."""

from __future__ import annotations

import json
from collections import defaultdict

import pytest
import torch
from support.constrained_models import END, LENGTH, SAMPLING, Constrained, allowed_after
from support.constraints import json_schema
from support.decisions import as_given
from support.exact_enumeration import enumerate_tokens
from support.rules_under_test import every_rule
from support.tables import all_of
from support.tree_enumeration import TREE_SCHEMES, Choices, distance, product_law, respond, uniform_shape

from cactus_decoding import generate, stream
from cactus_decoding.core.constraints.base import ConstrainedSampling
from cactus_decoding.core.policy.decide import Policy
from cactus_decoding.core.rules import parse_rule
from cactus_decoding.core.sampling.params import SamplingFn
from cactus_decoding.core.types import Proposal, StepRows, with_forced
from cactus_decoding.core.verification.tree import Tree
from cactus_decoding.core.verification.walk import NodeJudge

SEEDS = (1, 3, 5)


def forced_after(text: tuple[int, ...], limit: int, most: int = 1) -> list[int]:
    """Return the tokens that must follow, by the definition of the mask; or wrongly, those that are among ``most``."""
    found: list[int] = []
    while len(found) < limit and END not in (*text, *found):
        mask = allowed_after((*text, *found))
        if sum(mask) > most:
            break
        found.append(mask.index(True))
    return found


def step(scheme, rule, models, text, drafts, choices, room):
    """Take one step as the loop does: forced tokens around a drafted chain, all of them verified together."""
    before = forced_after(text, room)
    now, drafted, rows = (*text, *before), [], []
    for _ in range(min(drafts, room - len(before))):
        rows.append(models((*now, *drafted))[1])
        drafted.append(choices.token(rows[-1]))
    inner = Proposal(drafted, torch.stack(rows)) if drafted else Proposal([], None)
    after = forced_after((*now, *drafted), room - len(before) - len(drafted)) if drafted else []
    proposal = with_forced(before, inner, after)
    path = proposal.token_ids
    target = torch.stack([models((*text, *path[:n]))[0] for n in range(len(path) + 1)])
    policy = Policy(rule, None)
    judge = NodeJudge(policy, policy.begin(), proposal)
    walk = scheme(Tree(StepRows(target, [*text, *path], proposal, as_given, as_given)), judge, choices)
    return proposal, walk


def law_of(scheme, rule, models, drafts, unverified=0):
    """Enumerate whole responses; ``unverified`` takes tokens among so many allowed ones as forced, and tests none."""
    law, unfinished = defaultdict(float), {(): 1.0}
    while unfinished:
        longer = defaultdict(float)
        for text, chance in unfinished.items():
            sure = tuple(forced_after(text, LENGTH - len(text) - 1, unverified)) if unverified else ()
            choices = Choices()
            for _ in choices:
                now = (*text, *sure)
                proposal, walk = step(scheme, rule, models, now, drafts, choices, LENGTH - len(now) - 1)
                assert unverified or len(walk.path) >= len(forced_after(text, LENGTH - len(text) - 1))
                whole = (*now, *(proposal.token_ids[node] for node in walk.path), walk.next_token)
                (law if len(whole) == LENGTH else longer)[whole] += chance * choices.probability
        unfinished = longer
    return law


@pytest.mark.parametrize("drafts", [0, 1, 2])
@all_of("scheme", [*TREE_SCHEMES])
def test_forced_proposals_leave_a_lossless_response_as_it_is(scheme, drafts):
    for seed in SEEDS:
        models = Constrained(seed)
        law = law_of(TREE_SCHEMES[scheme], parse_rule("lossless"), models, drafts)
        assert distance(law, product_law(lambda text, m=models: m.expected(text)[0], 4, LENGTH)) < 1e-12


def test_a_token_that_is_merely_likely_is_not_forced():
    models = Constrained(1)
    law = law_of(TREE_SCHEMES["token"], parse_rule("lossless"), models, 1, unverified=2)
    assert distance(law, product_law(lambda text: models.expected(text)[0], 4, LENGTH)) > 0.02


@every_rule()
def test_no_rule_rejects_a_forced_token(spelling):
    law_of(TREE_SCHEMES["token"], parse_rule(spelling), Constrained(3), 2)  # which asserts it of every step


SCHEMA = {
    "type": "object",
    "properties": {"pens": {"type": "integer", "minimum": 1, "maximum": 5}, "kind": {"enum": ["red", "blue"]}},
    "required": ["pens", "kind"],
    "additionalProperties": False,
}


@all_of(
    "settings",
    [
        {},
        {"num_speculative_tokens": 0},
        {"num_speculative_tokens": "auto"},
        {"tree": "static=2.2"},
        {"verification": "block"},
    ],
)
def test_forced_tokens_come_without_the_draft_and_change_no_text(pair, settings):
    plain = generate(pair, "Tom has", temperature=0, num_speculative_tokens=0, response_format=json_schema(SCHEMA))
    response = generate(pair, "Tom has", temperature=0, response_format=json_schema(SCHEMA), **settings)
    assert response.text == plain.text
    assert json.loads(response.text)["kind"] in ("red", "blue")
    assert response.metrics.forced >= 5
    assert response.metrics.steps < len(response.token_ids) - 4


def test_what_is_forced_is_kept_and_what_is_drafted_is_allowed(pair):
    for seed in range(10):
        for outcome in stream(pair, "Tom has", seed=seed, temperature=2, response_format=json_schema(SCHEMA)):
            before = [node for node in range(len(outcome.proposal.forced)) if node in outcome.proposal.forced]
            assert before == outcome.path[: len(before)]
            for node in range(len(outcome.proposal.token_ids)):
                row = outcome.rows.target_of(node)
                assert row[outcome.proposal.token_ids[node]] > 0


def test_a_relaxed_rule_that_judges_blocks_gets_none(pair):
    form = json_schema(SCHEMA)
    response = generate(pair, "Tom has", rule="clamped:width=1", verification="block", response_format=form, seed=0)
    assert response.metrics.forced == 0
    assert response.metrics.relaxed + response.metrics.accepted > 0
    assert json.loads(response.text)


CHAIN, TREE = uniform_shape(2, 0, 1), uniform_shape(2, 1, 1)


class Expected(Constrained):
    def __call__(self, text: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
        return self.expected(text)


def target_law(models: Constrained) -> dict:
    return product_law(lambda text: models.expected(text)[0], 4, LENGTH)


def inside(law: dict) -> float:
    """Return how likely the beginning of an allowed text is, with anything after its end."""
    ended = [tuple(text[: text.index(END) + 1]) if END in text else text for text in law]
    fits = [all(allowed_after(text[:n])[text[n]] for n in range(len(text))) for text in ended]
    return sum(p for fit, p in zip(fits, law.values(), strict=True) if fit)


@pytest.mark.parametrize("shape", [CHAIN, TREE], ids=["chain", "tree"])
@all_of("scheme", ["token", "joint"])
def test_a_lossless_response_follows_the_masked_target(scheme, shape):
    for seed in (1, 3, 5):
        models = Constrained(seed)
        law = respond(TREE_SCHEMES[scheme], parse_rule("lossless"), models, shape, LENGTH).law
        assert distance(law, target_law(models)) < 1e-12
        assert inside(law) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("shape", [CHAIN, TREE], ids=["chain", "tree"])
@all_of("rule", ["clamped:width=1", "cactus:delta=1", "typical"])
def test_a_relaxed_response_is_what_the_rule_makes_of_masked_rows_and_stays_inside(rule, shape):
    models, rule = Constrained(3), parse_rule(rule)
    law = respond(TREE_SCHEMES["token"], rule, models, shape, LENGTH).law
    assert distance(law, respond(TREE_SCHEMES["token"], rule, Expected(3), shape, LENGTH).law) < 1e-12
    assert inside(law) == pytest.approx(1, abs=1e-12)
    if shape is CHAIN:  # the first token again, by the definition of draft and verify
        target, draft = models.expected(())
        first = enumerate_tokens(rule, target[None], draft[None])[0][0]
        found = [sum(p for text, p in law.items() if text[0] == token) for token in range(4)]
        assert found == pytest.approx(first.tolist(), abs=1e-12)


@pytest.mark.parametrize("variant", ["draft only", "after top-p"])
def test_other_places_for_the_mask_give_another_distribution(variant):
    models = Constrained(5, variant)
    law = respond(TREE_SCHEMES["token"], parse_rule("lossless"), models, CHAIN, LENGTH).law
    assert distance(law, target_law(models)) > 0.02
    assert (inside(law) < 0.9) == (variant == "draft only")


def test_rows_of_a_step_are_masked_each_after_its_own_tokens():
    models = Constrained()
    sampling = ConstrainedSampling(SamplingFn(SAMPLING), models.constraint, 2)
    prompt, text = [3, 3], (0, 1, END)
    logits = torch.stack([models.logits(text[:n])[0] for n in range(4)])
    rows = sampling(logits, [*prompt, *text])
    expected = torch.stack([models.expected(text[:n])[0] for n in range(4)])
    assert (rows - expected).abs().max() < 1e-12
    before = ConstrainedSampling(SamplingFn(SAMPLING), models.constraint, 2).untempered(logits[:1], prompt)
    assert (before > 0).tolist() == [allowed_after(())]
