"""Multi-path block verification: that it is exact, what it keeps beside others, and that SpecTr-GBV's code is not."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict

import pytest
from support import spectr_gbv
from support.tree_acceptance import jointly, most_kept
from support.tree_enumeration import (
    TREE_SCHEMES,
    LazyTree,
    Models,
    Shape,
    distance,
    lossless_distance,
    mean_accepted,
    product_law,
    respond,
    uniform_shape,
)
from torch import Tensor

from cactus_decoding import parse_rule
from cactus_decoding.core.request import Request
from cactus_decoding.core.verification.multipath import multipath

EXACT, FAR = 1e-12, 1e-3
LOSSLESS = parse_rule("lossless")


def shape(drafts: int, depth: int) -> Shape:
    return Shape((0,) * depth, (0,) * depth, drafts=drafts)


class Chosen(Models):
    """A draft that is the best of several: its rows by all combinations of drafts, without a formula."""

    def __init__(self, models: Models, drafts: int, depth: int) -> None:
        super().__init__(models.vocabulary, 0)
        self._models, chances = models, defaultdict[tuple[int, ...], float](float)
        paths = [*itertools.product(range(models.vocabulary), repeat=depth)]
        for drawn in itertools.product(paths, repeat=drafts):
            best = max(drawn, key=self._ranks)
            chance = math.prod(models(path[:i])[1][x].item() for path in drawn for i, x in enumerate(path))
            for end in range(depth + 1):
                chances[best[:end]] += chance
        self._chances = chances

    def _ranks(self, path: tuple[int, ...]) -> list[float]:
        rows = [self._models(path[:i]) for i in range(len(path))]
        return [(target[x] / draft[x]).item() for (target, draft), x in zip(rows, path, strict=True)]

    def __call__(self, text: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        target, draft = self._models(text)
        going_on = [self._chances[*text, x] / (self._chances[text] or 1.0) for x in range(self.vocabulary)]
        return target, draft.new_tensor(going_on)


@pytest.mark.parametrize(
    ("drafts", "vocabulary", "depth", "length"),
    [(1, 3, 2, 4), (2, 2, 2, 4), (2, 3, 1, 4), (3, 3, 1, 3), pytest.param(2, 3, 2, 3, marks=pytest.mark.slow)],
)
def test_lossless_responses_have_the_target_s_distribution(
    drafts: int, vocabulary: int, depth: int, length: int
) -> None:
    for seed, temperature in ((1, 1.0), (2, 2.0), (3, 1.0)):
        assert lossless_distance(multipath, Models(vocabulary, seed, temperature), shape(drafts, depth), length) < EXACT


@pytest.mark.parametrize(("drafts", "vocabulary", "depth"), [(1, 3, 2), (2, 3, 2), (3, 2, 2), (4, 3, 1)])
def test_it_keeps_what_a_block_keeps_of_the_chosen_draft(drafts: int, vocabulary: int, depth: int) -> None:
    for seed in (21, 22):
        models = Models(vocabulary, seed)
        expected = jointly(Chosen(models, drafts, depth), (), uniform_shape(depth, 0, 1))
        found = mean_accepted(multipath, models, shape(drafts, depth))
        assert found == pytest.approx(expected, abs=EXACT)
        assert found <= most_kept(models, depth, drafts) + EXACT


def test_it_keeps_more_the_more_drafts_there_are_and_more_than_traversal() -> None:
    more = []
    for seed in (2, 3, 5, 24):
        models = Models(3, seed)
        one, two = (mean_accepted(multipath, models, shape(drafts, 2)) for drafts in (1, 2))
        assert one == pytest.approx(jointly(models, (), uniform_shape(2, 0, 1)), abs=EXACT)
        traversed = mean_accepted(TREE_SCHEMES["traversal"], models, shape(2, 2))
        assert two > max(one, traversed) - EXACT
        more.append((two - one, two - traversed))
    assert all(sum(each) > 0.05 for each in zip(*more, strict=True))


class JudgedAsIfAlone(LazyTree):
    """Forgets that the draft was chosen."""

    def __init__(self, *given: object) -> None:
        super().__init__(*given)
        self.drafts = 2  # of three that are drawn


def test_a_choice_whose_distribution_is_another_is_noticed() -> None:
    models = [Models(2, seed) for seed in (2, 3, 5)]
    assert max(lossless_distance(multipath, each, shape(3, 1), 2, JudgedAsIfAlone) for each in models) > FAR


class Alike(Models):
    """A draft half-way to its target."""

    def __call__(self, text: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        target, draft = super().__call__(text)
        return target, (target + draft) / 2


def test_the_number_that_spectr_gbv_calls_optimal_is_no_bound() -> None:
    models = Alike(3, 1)
    stated = spectr_gbv.theorem(models, 2, 2)
    assert stated + 0.05 < mean_accepted(multipath, models, shape(2, 2)) <= most_kept(models, 2, 2)
    for seed in range(5):  # one draft: the block verification that changes later rows, which is the bound
        models = Models(3, seed)
        assert spectr_gbv.theorem(models, 2, 1) == pytest.approx(most_kept(models, 2, 1), abs=EXACT)


def test_spectr_gbv_s_published_code_is_not_lossless() -> None:
    for seed in (2, 3, 5):
        models = Models(3, seed)
        target = {(token,): p for token, p in enumerate(models(())[0].tolist())}
        apart = []
        for drafts in (1, 2):
            law, mean = spectr_gbv.published(models, 2, drafts)
            assert sum(law.values()) == pytest.approx(1, abs=EXACT)
            assert mean < spectr_gbv.theorem(models, 2, drafts) + EXACT
            first = {(x,): sum(p for text, p in law.items() if text[0] == x) for x in range(3)}
            apart.append(distance(first, target))
        assert apart[0] < EXACT  # with one draft only later tokens are wrong
        assert apart[1] > FAR


def test_spectr_gbv_s_code_forgets_what_a_rejection_says_of_later_tokens() -> None:
    models = Models(3, 5)
    law, found = spectr_gbv.published(models, 2, 1)[0], defaultdict[tuple[int, ...], float](float)
    for text, chance in law.items():
        for token, probability in enumerate(models(text)[0].tolist()):
            found[(*text, token)[:2]] += chance * probability
    assert distance(dict(found), product_law(lambda text: models(text)[0], 3, 2)) > FAR


def test_it_takes_independent_drafts() -> None:
    with pytest.raises(ValueError, match="takes trees of independent drafts, such as independent,drafts=4, but it is"):
        Request.from_dict({"verification": "multipath", "tree": "static=2.2"})
    for wrong in (uniform_shape(1, 1, 1), uniform_shape(1, 0, 2)):
        with pytest.raises(ValueError, match="takes drafts that are drawn independently"):
            respond(multipath, LOSSLESS, Models(3, 5), wrong, 2)
    assert Request.from_dict({"verification": "multipath", "tree": "independent"}).tree.independent
