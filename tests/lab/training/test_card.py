"""What rules accept of a draft is what the audit says, and a model card says it, with licence, recipe and data."""

from __future__ import annotations

import math

import pytest
import torch
from support.expected_steps import expected_steps
from support.tables import all_of
from support.tiny_models import tiny_llama

from cactus_decoding import audit
from cactus_decoding.lab.training import TrainingSettings
from cactus_decoding.lab.training.card import card, licence_of, measure
from cactus_decoding.lab.training.data import DataSplit, Document, TokenSequence
from cactus_decoding.lab.training.material import Material

pytestmark = pytest.mark.usefixtures("settings_of_the_libraries")
RULES = ["lossless", "clamped:width=1.0", "cactus:delta=0.5"]
TEXTS = [TokenSequence([1 + i % 7, 2, 3, 4 + i % 3, 5, 6][: 4 + i % 3], i % 3) for i in range(12)]


@pytest.fixture(scope="module")
def models():
    return [tiny_llama(seed, sharpness=2.0) for seed in (0, 1)]


@pytest.fixture(scope="module")
def measured(models):
    return measure(*models, TEXTS, RULES, num_speculative_tokens=2)


@all_of("rule", RULES)
def test_acceptance_is_that_of_the_audit_at_every_learned_position(models, measured, rule):
    accepted, steps = [], 0.0
    for sequence in TEXTS:
        ids = torch.tensor([sequence.token_ids])
        with torch.no_grad():
            q, p = (model(ids).logits[0, :-1].softmax(-1)[max(sequence.prompt_length, 1) - 1 :] for model in models)
        alphas = audit(rule, q, p).acceptance.tolist()
        accepted += alphas
        steps += expected_steps(alphas, 2)
    found = measured[rule]
    assert found.rate.value == pytest.approx(sum(accepted) / len(accepted), abs=1e-12)
    assert found.length.value == pytest.approx(len(accepted) / steps, abs=1e-12)
    for interval in found:
        assert interval.low < interval.value < interval.high
    [few] = measure(*models, TEXTS[:3], [rule], 2).values()
    assert not few.rate.has_ends
    assert not math.isnan(few.rate.value)


def test_the_licence_is_the_one_that_the_target_s_card_or_configuration_states(models, tmp_path):
    for text, licence in (
        ('---\nlicense: "mit"\ntags: []\n---\n# A model', "mit"),
        ("---\nlicense: apache-2.0\n---\n", "apache-2.0"),
        ("# A model\nlicense: mit\n", None),
        ("---\ntags: []\n---\nlicense: mit\n", None),
        ("", None),
    ):
        (tmp_path / "README.md").write_text(text)
        assert licence_of(tmp_path, models[0]) == licence
    model = tiny_llama(0)
    model.config.license = "mit"
    assert licence_of(tmp_path, model) == "mit"


def test_the_card_carries_licence_recipe_data_and_intervals(models, measured, tmp_path):
    (tmp_path / "README.md").write_text("---\nlicense: mit\n---\n")
    material = Material(models[0], tmp_path, None, [], [Document("", "a")], DataSplit([], [], TEXTS), None, 8)
    settings = TrainingSettings("bundled", "data.jsonl", draft="bundled:worded", loss="kl")
    text = card(settings, material=material, before=measured, after=measured, commit="abc")
    assert 'license: "mit"' in text.split("---")[1]
    assert f"SHA-256 `{material.digest}`" in text
    assert "along 12 documents that training did not see" in text
    assert '"loss": "kl"' in text
    length = measured["lossless"].length
    assert f"| `lossless` | {length.value:.3f} [{length.low:.3f}, {length.high:.3f}] |" in text
