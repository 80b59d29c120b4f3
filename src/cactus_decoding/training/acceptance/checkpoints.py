"""Checkpoints that are whole, and progress: what is told of a trainer's run."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

_WHOLE = "whole"
"""A file of this name stands in a checkpoint whose other files are all written."""

Report = Callable[[str, int, int, str], None]
"""Called with what is being done, how much of it is done, how much there is to do, and a remark."""


class Watch(TrainerCallback):
    """Marks checkpoints that are whole, and reports steps."""

    def __init__(self, report: Report, stage: str) -> None:
        self._report, self._stage = report, stage
        self._last: dict[str, float] = {}

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any) -> None:
        """Mark the checkpoint that was just written, unless a gradient that is no number has spoilt it."""
        weights = more["model"].parameters()
        if state.is_world_process_zero and all(bool(each.isfinite().all()) for each in weights):
            (Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}" / _WHOLE).touch()

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: dict[str, float], **more: Any
    ) -> None:
        """Remember the loss and the acceptance length."""
        names = {"loss": "loss", "eval_acceptance_length": "acceptance length"}
        self._last |= {name: logs[key] for key, name in names.items() if key in logs}

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any) -> None:
        """Report a step."""
        remark = ", ".join(f"{name} {value:.3f}" for name, value in self._last.items())
        self._report(self._stage, state.global_step, state.max_steps, remark)


def last_whole(folder: Path) -> Path | None:
    """Return a run's last checkpoint that is whole, and remove those after it, which a kill cut off.

    Example:
        >>> last_whole(Path("nowhere")) is None
        True
    """
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
    """Return what a checkpoint knows of its run."""
    return TrainerState.load_from_json(str(checkpoint / "trainer_state.json"))
