"""One run of the trainer, which resumes from its last complete checkpoint, and its progress reports."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import (
    PreTrainedModel,
    PrinterCallback,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from cactus_decoding.lab.training.data import TokenSequence, collate
from cactus_decoding.lab.training.losses import parse_loss
from cactus_decoding.lab.training.material import Material
from cactus_decoding.lab.training.row_cache import RowCache
from cactus_decoding.lab.training.sampling import Continuations
from cactus_decoding.lab.training.settings import ProgressReport, TrainingSettings
from cactus_decoding.lab.training.trainer import METRIC, AcceptanceTrainer

_WHOLE = "whole"  # name of the file that marks a checkpoint as complete


class Watch(TrainerCallback):
    def __init__(self, report: ProgressReport) -> None:
        self._report = report
        self._last: dict[str, float] = {}

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any) -> None:
        """Mark the new checkpoint, unless a gradient that is not finite has spoilt its weights."""
        weights = more["model"].parameters()
        if state.is_world_process_zero and all(bool(each.isfinite().all()) for each in weights):
            (Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}" / _WHOLE).touch()

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: dict[str, float], **more: Any
    ) -> None:
        names = {"loss": "loss", "eval_acceptance_length": "acceptance length"}
        self._last |= {name: logs[key] for key, name in names.items() if key in logs}

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any) -> None:
        remark = ", ".join(f"{name} {value:.3f}" for name, value in self._last.items())
        self._report("Training", state.global_step, state.max_steps, remark)


def last_whole(folder: Path) -> Path | None:
    """Return a run's last complete checkpoint, and remove those after it, which a kill cut off."""
    whole = None
    for each in sorted(folder.glob(f"{PREFIX_CHECKPOINT_DIR}-*"), key=_step_of):
        if (each / _WHOLE).exists():
            whole = each
    if folder.exists():
        for each in folder.glob(f"{PREFIX_CHECKPOINT_DIR}-*"):
            if not (each / _WHOLE).exists() and (whole is None or _step_of(each) > _step_of(whole)):
                shutil.rmtree(each)
    return whole


def _step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.rpartition("-")[2])


def state_of(checkpoint: Path) -> TrainerState:
    return TrainerState.load_from_json(str(checkpoint / "trainer_state.json"))


WARMUP = 0.05  # the share of the steps in which the learning rate rises
_LOG_EVERY = 10
_WEEK = 7 * 24 * 3600


def arguments(settings: TrainingSettings, folder: Path) -> TrainingArguments:
    """Return the trainer's arguments; several processes connect to each other here."""
    every = min(settings.evaluate_every, settings.steps)
    args = TrainingArguments(
        output_dir=str(folder),
        max_steps=settings.steps,
        per_device_train_batch_size=settings.batch_size,
        per_device_eval_batch_size=settings.batch_size,
        gradient_accumulation_steps=settings.gradient_accumulation,
        learning_rate=settings.learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=math.ceil(WARMUP * settings.steps),
        weight_decay=0.0,
        bf16=settings.bfloat16,
        average_tokens_across_devices=True,
        eval_strategy="steps",
        eval_steps=every,
        eval_on_start=True,
        save_strategy="steps",
        save_steps=every,
        save_total_limit=2,
        load_best_model_at_end=True,
        metric_for_best_model=METRIC,
        greater_is_better=True,
        logging_steps=min(_LOG_EVERY, every),
        seed=settings.seed,
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
        use_cpu=not torch.accelerator.is_available(),  # without it, several processes would not find each other
        dataloader_pin_memory=torch.accelerator.is_available(),
        use_cache=True,  # what the draft's own configuration says of generation stays as it is
        ddp_find_unused_parameters=False,
        ddp_timeout=_WEEK,  # other processes wait while one asks the target
    )
    if args.n_gpu > 1:  # one GPU a process: torchrun or accelerate start more
        args._n_gpu = 1
    return args


def fit(
    settings: TrainingSettings,
    material: Material,
    args: TrainingArguments,
    draft: PreTrainedModel,
    report: ProgressReport,
    cache: RowCache | None = None,
) -> tuple[Path, list[dict[str, float]]]:
    """Train a draft, or resume; return its best checkpoint and what was logged."""
    folder = Path(args.output_dir)
    last = last_whole(folder)
    if last is not None and state_of(last).global_step >= settings.steps:
        return _best(last)
    trainer = AcceptanceTrainer(
        target=material.target,
        loss=parse_loss(settings.loss),
        num_speculative_tokens=settings.num_speculative_tokens,
        continuations=_continuations(settings, material, args) if settings.on_policy else None,
        cache=cache,
        model=draft,
        args=args,
        train_dataset=list(enumerate(material.parts.train)),
        eval_dataset=list(enumerate(material.parts.validation)),
        data_collator=_collate,
        callbacks=[Watch(report)],
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train(resume_from_checkpoint=None if last is None else str(last))
    last = last_whole(folder)
    assert last is not None
    return _best(last)


def _best(last: Path) -> tuple[Path, list[dict[str, float]]]:
    state = state_of(last)
    best = state.best_model_checkpoint
    return last if best is None else last.with_name(Path(best).name), state.log_history


def _collate(items: Sequence[tuple[int, TokenSequence]]) -> dict[str, Tensor]:
    return collate([each for _, each in items]) | {"index": torch.tensor([index for index, _ in items])}


def _continuations(settings: TrainingSettings, material: Material, args: Any) -> Continuations:
    return Continuations(
        material.parts.train,
        settings.on_policy,
        settings.refresh_every,
        settings.batch_size * settings.gradient_accumulation,
        stop_token_ids=material.stop_token_ids,
        max_new_tokens=settings.max_new_tokens,
        max_length=material.max_length,
        seed=settings.seed * 1009 + args.process_index,
    )
