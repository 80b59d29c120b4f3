"""A constrained response follows the masked target: every draft and every decision is enumerated, to 1e-12."""

from __future__ import annotations

import pytest
import torch
from support.constrained_models import END, LENGTH, SAMPLING, Constrained, allowed_after
from support.exact_enumeration import enumerate_tokens
from support.tables import all_of
from support.tree_enumeration import TREE_SCHEMES, distance, product_law, respond, uniform_shape

from cactus_decoding.core.constraints.base import ConstrainedSampling
from cactus_decoding.core.rules import parse_rule
from cactus_decoding.core.sampling.params import SamplingFn

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
