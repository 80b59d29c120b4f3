"""The folder of a trained draft: weights, tokenizer, model card, and how it came about."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoConfig, PreTrainedModel

from cactus_decoding.files.provenance import provenance
from cactus_decoding.files.writing import as_json
from cactus_decoding.models.loading import load_model, only_cached
from cactus_decoding.training.acceptance.card import card
from cactus_decoding.training.acceptance.checkpoints import Report
from cactus_decoding.training.acceptance.losses import parse_loss
from cactus_decoding.training.acceptance.losses.relaxed import Relaxed
from cactus_decoding.training.acceptance.material import Material
from cactus_decoding.training.acceptance.measuring import Acceptance, measure
from cactus_decoding.training.acceptance.saving import naming
from cactus_decoding.training.acceptance.settings import TrainingSettings
from cactus_decoding.training.acceptance.starts import draft_name, start

MEASURED = ("lossless", "clamped:width=1.0", "clamped:width=3.0", "cactus:delta=1.0")
"""Rules whose acceptance a model card tells."""


def write_model(
    folder: Path,
    best: Path,
    settings: TrainingSettings,
    material: Material,
    logged: Sequence[dict[str, float]],
    report: Report,
) -> Path:
    """Write a plain Hugging Face model with a model card, after measuring it as it is written; return the folder.

    What is in the folder is replaced. The weights of the checkpoint ``best`` are taken, in the precision of the model
    that training started from.
    """
    target = material.target
    shutil.rmtree(folder, ignore_errors=True)
    with naming(folder):
        model = load_model("draft", best, torch.float32, torch.device("cpu"))
        model.to(_dtype(settings, target)).save_pretrained(folder)
        material.tokenizer.save_pretrained(folder)
    loss = parse_loss(settings.loss)
    rules = list(dict.fromkeys([*MEASURED, *([str(loss.rule)] if isinstance(loss, Relaxed) else [])]))
    measured: list[dict[str, Acceptance]] = []
    for stage, draft in (
        ("Measuring the start", start(settings, target)),
        ("Measuring the draft", load_model("draft", folder, torch.float32, target.device)),
    ):
        found = measure(
            target,
            draft,
            material.parts.test,
            rules,
            settings.num_speculative_tokens,
            lambda done, stage=stage: report(stage, done, len(material.parts.test), ""),  # type: ignore[misc]
        )
        measured.append(found)
    before, after = measured
    about = provenance(settings.as_dict() | {"data_sha256": material.digest})
    told = {
        "provenance": about,
        "documents": {"all": len(material.documents)} | {n: len(p) for n, p in material.parts._asdict().items()},
        "before": {rule: each._asdict() for rule, each in before.items()},
        "after": {rule: each._asdict() for rule, each in after.items()},
        "log": list(logged),
    }
    text = card(settings, material=material, before=before, after=after, commit=about["commit"])  # type: ignore[arg-type]
    with naming(folder):
        (folder / "README.md").write_text(text, encoding="utf-8")
        (folder / "training.json").write_text(as_json(told, indent=2), encoding="utf-8")
        if material.answers is not None:
            shutil.copy(material.answers, folder)
    return folder


def _dtype(settings: TrainingSettings, target: PreTrainedModel) -> torch.dtype:
    """Return the precision that the start's weights are stored in."""
    name = draft_name(settings)
    if name is None:
        kept: torch.dtype = target.dtype
        return kept
    config = AutoConfig.from_pretrained(name, local_files_only=only_cached("draft", name))
    stored: torch.dtype | None = config.dtype
    return torch.float32 if stored is None else stored
