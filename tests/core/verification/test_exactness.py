"""What schemes emit with trees, enumerated in float64 to 1e-12: every draft, every decision, several steps."""

from __future__ import annotations

import pytest
import torch
from support.rules_under_test import SPELLINGS, every_rule
from support.tree_enumeration import (
    TREE_SCHEMES,
    LazyTree,
    Models,
    Shape,
    distance,
    lossless_distance,
    product_law,
    respond,
    uniform_shape,
)
from support.wrong_trees import (
    TreeJudgedByTheWholeRow,
    TreeWithoutUnlikelyDraws,
    coupled_with_a_second_draw,
    joint_with_a_capped_quotient,
)
from torch import Tensor

from cactus_decoding import audit, parse_rule
from cactus_decoding.core.divergences.rows import without
from cactus_decoding.core.rules.base import GreedyRule, row_rule
from cactus_decoding.core.types import AcceptanceRule
from cactus_decoding.core.verification.tree import Scheme

EXACT = 1e-12
DRAFTED_ALONE = [text for text in SPELLINGS if row_rule(parse_rule(text)) is not None]
SHAPES = {
    "a chain": Shape((0, 0), (1, 1)),
    "fixed only": Shape((2, 1), (0, 0)),
    "a fixed and a drawn one": Shape((1, 1), (1, 1)),
    "two fixed and a drawn one, once": Shape((2,), (1,)),
    "wide, then narrow": Shape((2, 0, 0), (1, 1, 1)),
    "where the draft is unsure": Shape((1, 1, 1), (1, 1, 1), by_row=True),
}
SEVERAL_DRAWN = {
    "two drawn": Shape((0, 0), (2, 1)),
    "a fixed and two drawn": Shape((1,), (2,)),
}
JUDGING = [name for name in TREE_SCHEMES if name != "coupled"]  # which draws by itself: no draft changes its law
WITH_MANY_DRAWN = [name for name in TREE_SCHEMES if name != "joint"]


@pytest.mark.parametrize("name", TREE_SCHEMES)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_lossless_responses_have_the_target_s_law(name: str, shape: Shape) -> None:
    for vocabulary, seed, temperature in ((2, 1, 1.0), (3, 2, 2.0), (3, 3, 1.0), (4, 4, 1.0)):
        models = Models(vocabulary, seed, temperature)
        assert lossless_distance(TREE_SCHEMES[name], models, shape, 3 if vocabulary == 4 else 4) < EXACT


@pytest.mark.parametrize("name", WITH_MANY_DRAWN)
@pytest.mark.parametrize("shape", SEVERAL_DRAWN.values(), ids=SEVERAL_DRAWN)
def test_several_children_may_be_drawn(name: str, shape: Shape) -> None:
    for vocabulary, seed in ((2, 5), (3, 6)):
        assert lossless_distance(TREE_SCHEMES[name], Models(vocabulary, seed), shape, 3) < EXACT


def test_joint_verification_refuses_several_drawn_children() -> None:
    with pytest.raises(ValueError, match="at most one drawn child a node, but one has 2"):
        lossless_distance(TREE_SCHEMES["joint"], Models(3, 5), SEVERAL_DRAWN["two drawn"], 2)


def law_beside(
    rule: AcceptanceRule, models: Models, text: tuple[int, ...], shape: Shape
) -> tuple[Tensor, Tensor | None]:
    """Return what a rule emits at a node with the first children of a shape, and its h, if it has one."""
    target, draft = models(text)
    num_fixed, num_drawn = shape.at(0, draft)
    fixed = draft.topk(num_fixed).indices
    law = without(draft, fixed)
    if not num_drawn or law.sum() == 0:
        law = torch.zeros_like(draft).scatter(0, fixed[:1], 1.0)
    giving = row_rule(rule)
    h = None if giving is None else giving.relaxed_target_beside(target, draft, law, fixed)
    if not num_drawn and h is not None:  # the draft has a row all the same, which the ensemble mixes in
        return h, h
    return audit(rule, target, draft if num_drawn else None, fixed_token_ids=fixed).output_probs, h


CONSTANT = {"fixed only": uniform_shape(2, 2, 0), "both": uniform_shape(2, 1, 1), "drawn only": uniform_shape(2, 0, 1)}


@every_rule([text for text in SPELLINGS if not isinstance(parse_rule(text), GreedyRule)])
@pytest.mark.parametrize("shape", CONSTANT.values(), ids=CONSTANT)
def test_matching_emits_the_audited_law_of_every_rule(spelling: str, shape: Shape) -> None:
    rule = parse_rule(spelling)
    for vocabulary, seed in ((3, 7), (4, 8)):
        models = Models(vocabulary, seed)
        law = respond(TREE_SCHEMES["token"], rule, models, shape, 4 if vocabulary == 3 else 3).law
        verified = 2 if vocabulary == 3 else 1  # a step that is cut short may end with a bonus token

        def emitted(text: tuple[int, ...], models: Models = models) -> Tensor:
            return law_beside(rule, models, text, shape)[0]

        expected = product_law(emitted, vocabulary, verified)
        assert distance(first_tokens(law, verified), expected) < EXACT


@pytest.mark.parametrize("name", [name for name in TREE_SCHEMES if name != "token"])
@every_rule(DRAFTED_ALONE)
def test_joint_schemes_emit_h(name: str, spelling: str) -> None:
    rule = parse_rule(spelling)
    for (label, shape), seed in zip(CONSTANT.items(), (9, 10, 11), strict=True):
        models = Models(3, seed)
        law = first_tokens(respond(TREE_SCHEMES[name], rule, models, shape, 4).law, 2)

        def h(text: tuple[int, ...], models: Models = models, shape: Shape = shape) -> Tensor:
            row = law_beside(rule, models, text, shape)[1]
            assert row is not None
            return row

        assert distance(law, product_law(h, 3, 2)) < EXACT, label


def first_tokens(law: dict[tuple[int, ...], float], count: int) -> dict[tuple[int, ...], float]:
    shorter: dict[tuple[int, ...], float] = {}
    for tokens, probability in law.items():
        shorter[tokens[:count]] = shorter.get(tokens[:count], 0.0) + probability
    return shorter


@every_rule([text for text in SPELLINGS if text not in DRAFTED_ALONE])
def test_rules_that_look_at_the_drafted_token_are_refused_by_the_others(spelling: str) -> None:
    for name in TREE_SCHEMES.keys() - {"token"}:
        with pytest.raises(ValueError, match="does not depend on the drafted token"):
            respond(TREE_SCHEMES[name], parse_rule(spelling), Models(3, 1), CONSTANT["both"], 2)


# --- wrong variants: each is far from the law that the right one has ---

FAR = 1e-3


def furthest(scheme: Scheme, shape: Shape, grow: type[LazyTree] = LazyTree) -> float:
    return max(lossless_distance(scheme, Models(3, seed), shape, 3, grow) for seed in (2, 3, 5))


@pytest.mark.parametrize("name", JUDGING)
def test_drawn_children_that_are_judged_by_the_whole_row_are_noticed(name: str) -> None:
    assert furthest(TREE_SCHEMES[name], CONSTANT["both"], TreeJudgedByTheWholeRow) > FAR


def test_a_quotient_that_is_merely_capped_is_noticed() -> None:
    assert furthest(joint_with_a_capped_quotient, CONSTANT["both"]) > FAR


@pytest.mark.parametrize("label", ["drawn only", "both"])
@pytest.mark.parametrize("name", JUDGING)
def test_dropping_unlikely_draws_is_noticed(name: str, label: str) -> None:
    assert furthest(TREE_SCHEMES[name], CONSTANT[label], TreeWithoutUnlikelyDraws) > FAR


def test_a_second_draw_after_a_mismatch_is_noticed() -> None:
    assert furthest(coupled_with_a_second_draw, CONSTANT["drawn only"]) > FAR
