"""The bundled pair: small enough to ship, one tokenizer, and good enough for what it is there for."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import pytest
import torch

from cactus_decoding import load_pair, zoo
from cactus_decoding.zoo.word_problems import word_problems
from factory.check_bundled import check_floors, check_wording, disagreement, evaluate_pair
from factory.train_bundled import RECIPES


def test_weights_take_at_most_24_megabytes_together():
    assert sum(file.stat().st_size for role in zoo.ROLES for file in zoo.path(role).glob("*.safetensors")) <= 24e6


def test_the_page_says_what_was_measured():
    root = Path(__file__).parents[2]
    result = json.loads((root / "docs" / "results" / "bundled_pair.json").read_text())
    scores = result["scores"]
    page = (root / "docs" / "bundled_models.md").read_text()
    for name in ("target", "draft"):
        assert f"{scores[name]['right']}/{scores[name]['answers']}" in page
    assert f"{scores['lossless']['metrics']['acceptance_length']:.2f}" in page


def test_all_models_have_the_very_same_tokenizer():
    assert len({(zoo.path(role) / "tokenizer.json").read_bytes() for role in zoo.ROLES}) == 1


@pytest.mark.parametrize("role", zoo.ROLES)
def test_the_shapes_are_those_of_the_recipe(role):
    config = json.loads((zoo.path(role) / "config.json").read_text())
    recipe = RECIPES[role]
    assert config["hidden_size"] == recipe.width
    assert config["num_hidden_layers"] == recipe.layers
    assert config["intermediate_size"] == recipe.mlp_width
    assert config["head_dim"] == recipe.head_width


@pytest.mark.slow
def test_the_floors_are_met_on_200_held_out_problems():
    # The seeds are fixed, so on one kind of processor the outcome is always the same. Rounding differs between kinds:
    # another one samples other answers, of which 0.94 are right, give or take 0.017 (one standard deviation).
    pair = load_pair(draft="bundled:draft")
    alone = load_pair(zoo.path("draft"), "ngram", dtype=torch.float32)
    problems = list(islice(word_problems("test", seed=0), 200))
    for floor in check_floors(evaluate_pair(pair, alone, problems)):
        assert floor.met, f"{floor.name} is {floor.value:.3f}, but must be {floor.asked}"


@pytest.mark.slow
def test_the_worded_draft_disagrees_about_words_on_100_validation_problems():
    # As above; the share varies by about 2 points (one standard deviation), the gain by about 6: one kind of processor
    # in 50 may sample answers that miss a floor.
    found = disagreement(load_pair(draft="bundled:worded"), list(islice(word_problems("validation", seed=0), 100)))
    for floor in check_wording(found, zoo.path("worded")):
        assert floor.met, f"{floor.name} is {floor.value:.3f}, but must be {floor.asked}"


@pytest.mark.slow
def test_the_plain_draft_disagrees_about_digits_which_the_worded_one_must_not():
    found = disagreement(load_pair(draft="bundled:draft"), list(islice(word_problems("validation", seed=0), 20)))
    digits, _, _ = check_wording(found, zoo.path("draft"))
    assert not digits.met
