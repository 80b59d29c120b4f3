"""How many tokens are proposed: the choices, and that none of them changes the emitted law."""

from __future__ import annotations

import pytest
import torch
from support.loop_runs import PROMPT, decided, run
from support.tree_enumeration import TREE_SCHEMES, LazyTree, Models, distance, product_law, respond, uniform_shape

from cactus_decoding import (
    DRAFT_LENGTHS,
    ConfidenceStop,
    DraftLength,
    FixedLength,
    ModelDrafter,
    NgramDrafter,
    generate,
    load_pair,
    parse_rule,
)
from cactus_decoding.core.drafting.registry import as_draft_length


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (5, FixedLength(5)),
        ("6", FixedLength(6)),
        (" 0 ", FixedLength(0)),
        ("٣٣", FixedLength(33)),  # digits all the same
        ("fixed:max_draft_tokens=3", FixedLength(3)),
        ("confidence", ConfidenceStop()),
        ("confidence:threshold=0.25,max_draft_tokens=5", ConfidenceStop(5, 0.25)),
        (ConfidenceStop(3), ConfidenceStop(3)),
    ],
)
def test_numbers_objects_and_spellings(given, expected):
    assert as_draft_length(given) == expected
    assert isinstance(as_draft_length(given), DraftLength)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (-1, ValueError, "num_speculative_tokens must be at least 0, but is -1"),
        ("-2", ValueError, "num_speculative_tokens must be at least 0, but is -2"),
        *((text, ValueError, "num_speculative_tokens") for text in ("--5", "++5", "-", "", "5.5", "1e3", "9" * 5000)),
        (True, TypeError, "must be an integer, a draft length or its spelling, but is True"),
        (6.0, TypeError, "must be an integer, a draft length or its spelling, but is 6.0"),
        (None, TypeError, "must be an integer, a draft length or its spelling, but is None"),
        (FixedLength, TypeError, "must be an integer, a draft length or its spelling"),
        ("six", ValueError, "unknown draft length 'six'; known are fixed, confidence, auto"),
        ("confidence:k=3", ValueError, "parameters of confidence are: max_draft_tokens, threshold"),
        ("confidence:threshold=2", ValueError, r"threshold must be in \[0, 1\], but is 2.0"),
        ("confidence:max_draft_tokens=2.5", ValueError, "max_draft_tokens must be an integer, but is '2.5'"),
    ],
)
def test_what_is_no_draft_length_is_refused(given, error, message):
    with pytest.raises(error, match=message):
        as_draft_length(given)


def test_confidence_is_the_probability_of_the_likeliest_token():
    logits = torch.tensor([2.0, 1.0, -1.0, -torch.inf])
    p = float(logits.softmax(-1).max())
    assert ConfidenceStop(threshold=p - 1e-6).should_continue(logits)
    assert not ConfidenceStop(threshold=p + 1e-6).should_continue(logits)
    assert ConfidenceStop(threshold=0).should_continue(logits)


def stopping_tree(stop: ConfidenceStop, discards: bool) -> type[LazyTree]:
    """Return chains that end after a row that is not sure, or, if it is discarded, before a token is drawn from it."""

    class Stopping(LazyTree):
        def _grow(self, node: int):
            before = self.tokens_to(node)
            unsure = before if discards else before[:-1]
            asked = discards or bool(before)
            if asked and not stop.should_continue(self._models((*self._text, *unsure))[1].log()):
                return None
            return super()._grow(node)

    return Stopping


@pytest.mark.parametrize("threshold", [0.0, 0.5, 0.8, 1.0])
@pytest.mark.parametrize("discards", [False, True])
def test_a_confidence_stop_leaves_the_law_alone(threshold, discards):
    for seed in range(4):
        models = Models(3, seed)
        grow = stopping_tree(ConfidenceStop(threshold=threshold), discards)
        law = respond(TREE_SCHEMES["token"], parse_rule("lossless"), models, uniform_shape(3, 0, 1), 4, grow=grow).law
        assert distance(law, product_law(lambda text, models=models: models(text)[0], 3, 4)) < 1e-12


def test_an_unsure_row_is_discarded_before_a_token_is_drawn_from_it(target, draft):
    stop = ConfidenceStop(5, 0.5, "discard")
    for seed in range(4):
        steps, drafter = run(target, ModelDrafter(draft), k=stop, length=40, seed=seed), ModelDrafter(draft)
        counts, text = [step.num_drafted for step in steps], list(PROMPT)
        assert 0 in counts
        for step in steps[:-5]:  # the last ones end where the response does
            rows = [drafter.read([*text, *step.proposal.token_ids[:i]], 1)[0] for i in range(step.num_drafted + 1)]
            assert all(stop.should_continue(row) for row in rows[: step.num_drafted])
            assert step.num_drafted == 5 or not stop.should_continue(rows[-1])
            text += step.token_ids
    keeping = run(target, ModelDrafter(draft), k=ConfidenceStop(5, 0.5), length=40)
    assert min(step.num_drafted for step in keeping[:-5]) > 0  # the wrong one here: its token too


def test_a_drafter_forgets_the_draft_length_of_the_last_response(target, draft):
    drafter = ModelDrafter(draft)
    fixed = decided(run(target, drafter, k=4))
    run(target, drafter, k=ConfidenceStop(4, 1.0))
    assert decided(run(target, drafter, k=4)) == fixed


def test_text_lookup_counts_as_sure(target):
    fixed = decided(run(target, NgramDrafter(), k=4, length=60))
    assert decided(run(target, NgramDrafter(), k=ConfidenceStop(4, 1.0), length=60)) == fixed


@pytest.mark.parametrize("name", DRAFT_LENGTHS)
def test_generate_takes_any_draft_length(name):
    length = f"{name}:max_draft_tokens=3"
    response = generate(
        load_pair(), "Question: Tom has 4 pens.", num_speculative_tokens=length, seed=0, max_new_tokens=9
    )
    assert 0 < response.metrics.drafted <= 3 * response.metrics.steps
