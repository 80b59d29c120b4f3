"""A constrained response follows the masked target: every draft and every decision is enumerated, to 1e-12."""

from __future__ import annotations

import itertools

import pytest
import torch
from support.constraints import small_vocabulary
from support.exact_enumeration import enumerate_tokens
from support.tables import all_of
from support.tree_enumeration import TREE_SCHEMES, Models, distance, product_law, respond, uniform_shape

from cactus_decoding.core.constraints.base import ConstrainedSampling
from cactus_decoding.core.constraints.grammar import Grammar
from cactus_decoding.core.rules import parse_rule
from cactus_decoding.core.sampling.params import PlainSampling, SamplingParams

LETTERS, END, LENGTH = "abc", 3, 3
WORDS = ("aa", "ab", "ba", "bab", "c", "cca")
"""What the grammar allows, each followed by the end token."""
SAMPLING = SamplingParams(temperature=0.8, top_p=0.85)
CHAIN, TREE = uniform_shape(2, 0, 1), uniform_shape(2, 1, 1)


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
        self._constraint = vocabulary.constraint(Grammar("regex", "|".join(WORDS), "it"))
        self._variant = variant

    def logits(self, text: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the target's and the draft's."""
        generator = torch.Generator().manual_seed(self._seed + sum((t + 1) * 5**i for i, t in enumerate(text)))
        rows = torch.randn(2, 4, generator=generator, dtype=torch.float64) * 1.5
        return rows[0], rows[1]

    def __call__(self, text: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
        if text not in self._rows:
            plain = PlainSampling(SAMPLING)
            constrained = ConstrainedSampling(plain, self._constraint, 0)
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
    sampling = ConstrainedSampling(PlainSampling(SAMPLING), models._constraint, 2)
    prompt, text = [3, 3], (0, 1, END)
    logits = torch.stack([models.logits(text[:n])[0] for n in range(4)])
    rows = sampling(logits, [*prompt, *text])
    expected = torch.stack([models.expected(text[:n])[0] for n in range(4)])
    assert (rows - expected).abs().max() < 1e-12
    before = ConstrainedSampling(PlainSampling(SAMPLING), models._constraint, 2).untempered(logits[:1], prompt)
    assert (before > 0).tolist() == [allowed_after(())]
