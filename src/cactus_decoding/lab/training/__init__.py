"""Trains models: drafts for acceptance, also while they serve.

Names are imported when they are first used: some need transformers' trainer, which takes seconds to import.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as `typing` has it: only type checkers and the documentation's build see these imports
if TYPE_CHECKING:
    from cactus_decoding.lab.training.acceptance.settings import TrainingSettings as TrainingSettings
    from cactus_decoding.lab.training.acceptance.training import train_draft as train_draft
    from cactus_decoding.lab.training.adaptation import DraftAdaptation as DraftAdaptation
    from cactus_decoding.lab.training.diagnosis import diagnose as diagnose

_NAMES = {
    "DraftAdaptation": "adaptation",
    "TrainingSettings": "acceptance.settings",
    "diagnose": "diagnosis",
    "train_draft": "acceptance.training",
}


def __getattr__(name: str) -> object:
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_NAMES[name]}"), name)
