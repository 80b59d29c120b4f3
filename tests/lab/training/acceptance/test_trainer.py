"""What a training is told, how it evaluates, and what its model card says: all of it as the rows have it."""

from __future__ import annotations

import json
import math

import pytest
import torch
from support.expected_steps import expected_steps
from support.tables import all_of
from support.tiny_models import tiny_llama

from cactus_decoding import audit
from cactus_decoding.engines.transformers.partial_head import PartialHead, propose_from
from cactus_decoding.lab.training import TrainingSettings
from cactus_decoding.lab.training.acceptance.data import DataSplit, Document, TokenSequence, collate
from cactus_decoding.lab.training.acceptance.fitting import arguments as trainer_arguments
from cactus_decoding.lab.training.acceptance.fitting import fit, last_whole
from cactus_decoding.lab.training.acceptance.losses import CrossEntropy
from cactus_decoding.lab.training.acceptance.material import Material
from cactus_decoding.lab.training.acceptance.settings import AdaSpec, parse_filter
from cactus_decoding.lab.training.acceptance.trainer import AcceptanceTrainer
from cactus_decoding.lab.training.acceptance.training import card, licence_of, measure

pytestmark = pytest.mark.usefixtures("settings_of_the_libraries")
PART = [0, 2, 3, 5, 6]
"""Without 1, 4 and 7, of which the texts have some."""
SEQUENCES = [TokenSequence([1 + i % 7, 2, 3, 4 + i % 3, 5, 6][: 4 + i % 3], i % 3) for i in range(7)]


@pytest.mark.parametrize(
    ("loss", "rule"), [("total_variation", "lossless"), ("relaxed:clamped:width=0.5,kl_weight=0", "clamped:width=0.5")]
)
def test_evaluation_is_that_of_the_rows_however_they_are_put_into_batches(tmp_path, loss, rule):
    target, draft = (tiny_llama(seed, sharpness=0.3).float() for seed in (0, 1))
    rows = []
    for sequence in SEQUENCES:
        ids = torch.tensor([sequence.token_ids])
        with torch.no_grad():
            both = [model(ids).logits[0, :-1].double().softmax(-1) for model in (target, draft)]
        q, p = (probs[max(sequence.prompt_length, 1) - 1 :] for probs in both)
        rows.append(audit(rule, q, p).acceptance.tolist())
    steps = sum(expected_steps(row, 2) for row in rows)
    alphas = [alpha for row in rows for alpha in row]
    settings = TrainingSettings(
        "any", "any", draft="any", loss=loss, steps=1, batch_size=3, num_speculative_tokens=2,
        learning_rate=1e-9,
    )  # fmt: skip
    material = Material(target, "any", None, [], [], DataSplit(SEQUENCES, SEQUENCES, SEQUENCES), None, 8)
    _, log = fit(settings, material, trainer_arguments(settings, tmp_path / "work"), draft, lambda *_: None)
    for found in (log[0], log[-1]):  # before the first step, and after one that moves nothing
        assert found["eval_acceptance"] == pytest.approx(sum(alphas) / len(alphas), abs=1e-6)
        assert found["eval_loss"] == pytest.approx(1 - sum(alphas) / len(alphas), abs=1e-6)
        assert found["eval_acceptance_length"] == pytest.approx(len(alphas) / steps, abs=1e-6)


@pytest.mark.parametrize("wrong", [False, True])
def test_cross_entropy_learns_from_the_part_alone_what_it_learns_from_all_rows(tmp_path, monkeypatch, wrong):
    if wrong:  # tokens outside the part learn as its first one, and no longer count as nothing
        places = PartialHead.places
        monkeypatch.setattr(PartialHead, "places", lambda *given: (places(*given)[0], places(*given)[1] | True))
    target, draft = (tiny_llama(seed, sharpness=0.3).float() for seed in (0, 1))
    propose_from(draft, PART)
    settings = TrainingSettings("any", "any", draft="any", loss="cross_entropy", steps=1, batch_size=3)
    trainer = AcceptanceTrainer(
        target=target, loss=CrossEntropy(), num_speculative_tokens=2, model=draft,
        args=trainer_arguments(settings, tmp_path / "work"), eval_dataset=SEQUENCES,
    )  # fmt: skip
    batch = collate(SEQUENCES)
    learned = []
    for rows, width in (
        (trainer._own_rows(draft, batch), 5),
        (trainer._rows(draft, batch, trainer._target_rows(batch)), 8),
    ):
        assert rows.draft_log_probs.shape[-1] == width
        loss = trainer.loss(rows)
        learned.append((loss, *torch.autograd.grad(loss.mean(), list(draft.parameters()))))
    assert all(torch.allclose(*pair, atol=1e-6) for pair in zip(*learned, strict=True)) is not wrong


GIVEN = {"target": "bundled", "data": "a.jsonl", "draft": "bundled:worded"}


def test_settings_are_plain_values_in_one_spelling():
    settings = TrainingSettings(**GIVEN, loss="relaxed:clamped:width=3", filter="adaspec:keep=0.40")
    assert (settings.loss, settings.filter) == ("relaxed:clamped:width=3.0", "adaspec")
    assert TrainingSettings(**json.loads(json.dumps(settings.as_dict()))) == settings
    assert parse_filter("adaspec") == AdaSpec(keep=0.4)
    assert str(AdaSpec(keep=0.25)) == "adaspec:keep=0.25"


@all_of("others, message", [
    ({"filter": "adaspc"}, "unknown filter 'adaspc'.*did you mean 'adaspec'"),
    ({"filter": "adaspec:keep=0"}, "keep must be in"),
    ({"draft": None}, "give one start: .*; none of them are given"),
    ({"layers": 2, "width": 8}, "give one start: .*; several of them are given"),
    ({"draft": None, "layers": 2}, "layers and width go together"),
    ({"steps": 0}, "steps must be at least 1"),
    ({"learning_rate": 0.0}, "learning_rate must be in"),
    ({"on_policy": 1.5}, "on_policy must be in"),
    ({"on_policy": 0.5, "loss": "cross_entropy"}, "cross_entropy learns the texts' own tokens"),
    ({"on_policy": 0.5, "cache": "rows"}, "a cache keeps rows of texts that stay"),
    ({"on_policy": 0.5, "refresh_every": 30}, "evaluate_every must be a multiple of refresh_every"),
])  # fmt: skip
def test_what_does_not_go_together_is_refused(others, message):
    with pytest.raises(ValueError, match=message):
        TrainingSettings(**(GIVEN | others))


def test_the_last_whole_checkpoint_is_gone_on_from_and_later_ones_are_removed(tmp_path):
    assert last_whole(tmp_path / "missing") is None
    (tmp_path / "checkpoint-3").mkdir()
    assert last_whole(tmp_path) is None
    assert not any(tmp_path.iterdir())  # training begins anew
    for step, whole in ((2, True), (10, True), (9, False), (12, False)):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(b"weights")
        if whole:
            (folder / "whole").touch()
    (tmp_path / "notes").mkdir()
    assert last_whole(tmp_path) == tmp_path / "checkpoint-10"
    assert {each.name for each in tmp_path.iterdir()} == {"checkpoint-2", "checkpoint-9", "checkpoint-10", "notes"}


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
