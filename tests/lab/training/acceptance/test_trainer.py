"""The trainer's evaluation and loss are those of the rows, however sequences are put into batches."""

from __future__ import annotations

import pytest
import torch
from support.expected_steps import expected_steps
from support.tiny_models import tiny_llama

from cactus_decoding import audit
from cactus_decoding.engines.transformers.sublayers import PartialHead, propose_from
from cactus_decoding.lab.training import TrainingSettings
from cactus_decoding.lab.training.acceptance.data import DataSplit, TokenSequence, collate
from cactus_decoding.lab.training.acceptance.fitting import arguments as trainer_arguments
from cactus_decoding.lab.training.acceptance.fitting import fit
from cactus_decoding.lab.training.acceptance.losses import CrossEntropy
from cactus_decoding.lab.training.acceptance.material import Material
from cactus_decoding.lab.training.acceptance.trainer import AcceptanceTrainer

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
