"""Trains drafts for acceptance.

Names are imported when they are first used: some need transformers' trainer, which takes seconds to import.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as `typing` has it: only type checkers and the documentation's build see these imports
if TYPE_CHECKING:
    from cactus_decoding.lab.training.settings import TrainingSettings as TrainingSettings
    from cactus_decoding.lab.training.training import train_draft as train_draft

_NAMES = {"TrainingSettings": "settings", "train_draft": "training"}


def __getattr__(name: str) -> object:
    from importlib import import_module

    from cactus_decoding.core.gone import replacement

    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{replacement(name)}")
    return getattr(import_module(f"{__name__}.{_NAMES[name]}"), name)
