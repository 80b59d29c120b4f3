"""Hierarchical speculative decoding: that it is lossless, that it is block verification, and that its code is not."""

from __future__ import annotations

from collections import defaultdict
from functools import partial

import pytest
import torch
from support.rules_under_test import SPELLINGS, every_rule
from support.tree_enumeration import Models, lossless_distance, mean_accepted, steps, uniform_shape
from support.wrong_trees import hsd_as_published

from cactus_decoding import generate, load_pair, parse_rule
from cactus_decoding.core.request import Request
from cactus_decoding.core.verification.hsd import hsd
from cactus_decoding.core.verification.joint import joint
from cactus_decoding.core.verification.tree import Scheme
from cactus_decoding.zoo.word_problems import EXAMPLES

EXACT, FAR = 1e-12, 1e-3
ROW = torch.ones(1, 1)
BLOCK_RULES = [text for text in SPELLINGS if parse_rule(text).relaxed_target(ROW, ROW) is not None]


def outcomes(scheme: Scheme, rule: str, models: Models, proposals: int) -> dict[tuple[int, tuple[int, ...]], float]:
    """Return how likely a step keeps so many proposals and emits these tokens."""
    found: dict[tuple[int, tuple[int, ...]], float] = defaultdict(float)
    for step in steps(scheme, parse_rule(rule), models, (), uniform_shape(proposals, 0, 1)):
        found[len(step.walk.path), step.tokens] += step.probability
    return found


@pytest.mark.parametrize("proposals", [1, 2, 3])
def test_lossless_responses_have_the_target_s_distribution(proposals: int) -> None:
    for vocabulary, seed, temperature in ((2, 1, 1.0), (3, 2, 2.0), (3, 3, 1.0)):
        assert lossless_distance(hsd, Models(vocabulary, seed, temperature), uniform_shape(proposals, 0, 1), 4) < EXACT


@every_rule(BLOCK_RULES)
def test_each_step_is_that_of_block_verification(spelling: str) -> None:
    for vocabulary, seed, proposals in ((2, 4, 4), (3, 5, 3), (3, 6, 3)):
        models = Models(vocabulary, seed)
        ours, theirs = (outcomes(scheme, spelling, models, proposals) for scheme in (hsd, joint))
        assert max(abs(ours[each] - theirs[each]) for each in {*ours, *theirs}) < EXACT


@pytest.mark.parametrize("cap", ["once", "running"])
def test_its_published_code_keeps_more_and_is_not_lossless(cap: str) -> None:
    published, two, more = partial(hsd_as_published, cap=cap), uniform_shape(2, 0, 1), 0.0
    for seed in (2, 3, 5):
        models = Models(3, seed)
        assert (
            lossless_distance(published, models, uniform_shape(1, 0, 1), 3) < EXACT
        )  # one proposal leaves nothing to cap
        assert lossless_distance(published, models, two, 3) > FAR
        more += mean_accepted(published, models, two) - mean_accepted(hsd, models, two)
    assert more > 0.01


@pytest.mark.parametrize("settings", [{}, {"rule": "clamped:width=1"}, {"temperature": 0.0}], ids=str)
def test_the_same_numbers_keep_the_same_tokens_as_in_blocks(settings: dict) -> None:
    pair = load_pair()
    for seed in range(2):
        asked = settings | {"seed": seed, "max_new_tokens": 24, "num_speculative_tokens": 5}
        ours, theirs = (generate(pair, EXAMPLES[seed].prompt, verification=how, **asked) for how in ("hsd", "block"))
        assert ours.token_ids == theirs.token_ids
        assert ours.metrics.accepted == theirs.metrics.accepted


def test_it_takes_chains_and_rules_with_a_relaxed_target() -> None:
    with pytest.raises(ValueError, match="hsd verification is for chains; use verification='joint'"):
        Request.from_dict({"verification": "hsd", "tree": "static=2.2"})
    with pytest.raises(ValueError, match="does not depend on the drafted token"):
        Request.from_dict({"verification": "hsd", "rule": "cactus:delta=1"})
