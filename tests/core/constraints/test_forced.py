"""Tokens that a constraint forces are proposed without the draft, always kept, and change no distribution."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from typing import NamedTuple

import pytest
import torch
from support.constraints import bundled_vocabulary, json_schema, schema_of, small_vocabulary
from support.decisions import as_given
from support.rules_under_test import every_rule
from support.tables import all_of
from support.tree_enumeration import TREE_SCHEMES, Choices, Models, distance, product_law

from cactus_decoding import Drafter, Metrics, Pair, generate, load_pair, stream
from cactus_decoding.core.constraints.base import ConstrainedSampling, Grammar
from cactus_decoding.core.loop import with_forced
from cactus_decoding.core.policy.decide import Policy
from cactus_decoding.core.rules import parse_rule
from cactus_decoding.core.sampling.params import SamplingFn, SamplingParams
from cactus_decoding.core.types import ROOT, Outcome, Proposal, StepRows
from cactus_decoding.core.verification.tree import Tree
from cactus_decoding.core.verification.walk import NodeJudge

LETTERS, END, LENGTH = "abc", 3, 3
WORDS = ("aa", "ab", "ba", "bab", "c", "cca")
"""What the grammar allows, each followed by the end token."""
SAMPLING = SamplingParams(temperature=0.8, top_p=0.85)


def allowed_after(text: tuple[int, ...]) -> list[bool]:
    """Return the mask by its definition: the tokens with which a text begins an allowed one; all after such an end."""
    ended = [(*map(LETTERS.index, word), END) for word in WORDS]
    if text and not any(each[: len(text)] == text and each != text for each in ended):
        return [True] * 4
    return [any(each[: len(text) + 1] == (*text, token) for each in ended) for token in range(4)]


class Constrained(Models):
    """Random logits of a text, and the rows that sessions make of them; or wrong ones."""

    def __init__(self, seed: int = 0, variant: str = "right") -> None:
        super().__init__(4, seed)
        vocabulary = small_vocabulary([letter.encode() for letter in LETTERS])
        self.constraint = vocabulary.constraint(Grammar("regex", "|".join(WORDS), "it"))
        self._variant = variant

    def logits(self, text: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(self._seed + sum((t + 1) * 5**i for i, t in enumerate(text)))
        rows = torch.randn(2, 4, generator=generator, dtype=torch.float64) * 1.5
        return rows[0], rows[1]

    def __call__(self, text: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
        if text not in self._rows:
            plain = SamplingFn(SAMPLING)
            constrained = ConstrainedSampling(plain, self.constraint, 0)
            target, draft = (row[None] for row in self.logits(text))
            if self._variant == "draft only":
                target = plain(target, [*text])
            elif self._variant == "after top-p":
                late = plain(target, [*text]) * torch.tensor(allowed_after(text))
                target = late / late.sum() if late.sum() > 0 else constrained(target, [*text])
            else:
                target = constrained(target, [*text])
            self._rows[text] = target[0], constrained(draft, [*text])[0]
        return self._rows[text]

    def expected(self, text: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the rows by their definition: logits that are masked first, then temperature, then top-p."""
        mask = torch.tensor(allowed_after(text))
        rows = []
        for logits in self.logits(text):
            probs = (logits.masked_fill(~mask, -torch.inf) / SAMPLING.temperature).softmax(-1)
            order = probs.argsort(descending=True).tolist()
            before = [0.0, *itertools.accumulate(probs[i].item() for i in order)]
            kept = {i for i, mass in zip(order, before, strict=False) if mass < SAMPLING.top_p}
            probs = torch.tensor([p if i in kept else 0.0 for i, p in enumerate(probs.tolist())], dtype=torch.float64)
            rows.append(probs / probs.sum())
        return rows[0], rows[1]


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
            reached = {node for node in outcome.proposal.forced if node - 1 in (ROOT, *outcome.path)}
            assert reached == outcome.proposal.forced.intersection(outcome.path)
            for node in range(len(outcome.proposal.token_ids)):
                row = outcome.rows.target_of(node)
                assert row[outcome.proposal.token_ids[node]] > 0


class Counted(NamedTuple):
    """A step, and which of its proposals are the only tokens that its masks allow."""

    step: Outcome
    only: list[bool]
    text: list[int]  # before it
    ended: bool  # whether the response may end within its proposals

    @property
    def free(self):
        return self.only.count(False)


def counted(given, **asked):
    """Yield the steps of a response, counted by a constraint of their own."""
    vocabulary, _ = bundled_vocabulary()
    constraint, text = vocabulary.constraint(schema_of(SCHEMA)), list[int]()
    for step in stream(given, "Tom has", response_format=json_schema(SCHEMA), **asked):
        only = list[bool]()
        for node, token in enumerate(step.proposal.token_ids):
            mask = constraint.allowed(text + step.proposal.tokens_to(step.proposal.parents[node]))
            only.append(mask is not None and mask.nonzero().flatten().tolist() == [token])
        yield Counted(step, only, list(text), any(token in vocabulary.ends for token in step.proposal.token_ids))
        text += step.token_ids


@pytest.fixture(scope="module")
def copying():
    return load_pair(draft="ngram")


@all_of(
    "settings",
    [
        {"num_speculative_tokens": 4},
        {"num_speculative_tokens": 4, "verification": "coupled"},
        {"num_speculative_tokens": 4, "rule": "clamped:width=1", "verification": "block"},
        {"tree": "static=2.2"},
        {"num_speculative_tokens": "auto"},
        {"num_speculative_tokens": 4, "copies": True},
        {"tree": "static=2.2", "copies": True},
    ],
)
def test_every_forced_token_that_is_kept_counts_and_no_other(pair, copying, settings):
    """Counted from masks: a kept proposal is forced where nothing else is allowed, whoever proposed it."""
    asked = {name: value for name, value in settings.items() if name != "copies"}
    metrics, expected = Metrics(), 0
    for seed in range(3):
        for step, only, *_ in counted(copying if "copies" in settings else pair, seed=seed, **asked):
            metrics += Metrics.of(step)
            assert step.proposal.forced == {node for node, alone in enumerate(only) if alone}
            expected += sum(only[node] for node in step.path)
    assert metrics.forced == expected > 0


def test_forced_tokens_take_no_places_of_others(pair, copying):
    """Each step proposes as many free tokens as were asked for, unless the response may end there."""
    full = inside = 0
    for seed in range(4):
        for each in counted(pair, seed=seed, temperature=1, num_speculative_tokens=3):
            assert each.free == 3 or each.ended
            full += each.free == 3
            first, last = (
                each.only.index(False) if each.free else 0,
                each.step.num_drafted - each.only[::-1].index(False),
            )
            inside += any(each.only[first:last])
    assert full > 4
    assert inside > 4
    copied = [each for seed in range(4) for each in counted(copying, seed=seed, num_speculative_tokens=1)]
    assert max(each.free for each in copied) == 1
    assert max(each.step.num_drafted for each in copied) > 1


@pytest.mark.parametrize("given", ["model", "copies"])
def test_what_a_limit_leaves_room_for_is_all_that_is_proposed(pair, copying, given):
    for limit in range(1, 25):
        asked = {"max_new_tokens": limit, "num_speculative_tokens": 4, "seed": limit}
        steps = [each.step for each in counted(pair if given == "model" else copying, **asked)]
        before = itertools.accumulate((step.num_emitted for step in steps), initial=0)
        assert all(
            start + step.num_drafted < limit or not step.num_drafted for start, step in zip(before, steps, strict=False)
        )


def test_relaxed_rules_that_judge_blocks_have_forced_tokens_among_their_proposals(pair):
    asked = {"rule": "clamped:width=1", "verification": "block", "num_speculative_tokens": 4, "max_new_tokens": 40}
    steps = [each.step for seed in range(3) for each in counted(pair, seed=seed, **asked)]
    assert {step.num_drafted for step in steps if step.finish_reason is None} == {4}


def test_a_drafter_that_proposes_more_free_tokens_than_it_was_asked_for_is_refused(pair):
    class Eager(Drafter):
        def propose(self, token_ids, limit, to_probs, generator):
            forced = to_probs.forced(token_ids, 1)
            return Proposal(forced or [1] * (limit + 1), None)

    eager = Pair(pair.target, Eager(), pair.tokenizer)
    with pytest.raises(ValueError, match="at most the 2 tokens that it was asked for: 3"):
        generate(eager, "Tom has", response_format=json_schema(SCHEMA), num_speculative_tokens=2)


@pytest.mark.parametrize("variant", ["draft only", "after top-p"])
def test_other_places_for_the_mask_give_another_distribution(variant):
    models = Constrained(5, variant)
    law, right = (product_law(lambda text, rows=rows: rows(text)[0], 4, LENGTH) for rows in (models, models.expected))
    assert distance(law, right) > 0.02


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
