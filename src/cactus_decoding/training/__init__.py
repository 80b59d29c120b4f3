"""Trains models: drafts for acceptance, importance, and the bundled pair.

Names are imported when they are asked for: they need transformers' trainer, which takes seconds to import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cactus_decoding.training.acceptance.settings import TrainingSettings as TrainingSettings
    from cactus_decoding.training.acceptance.training import train_draft as train_draft

_NAMES = {"TrainingSettings": "settings", "train_draft": "training"}


def __getattr__(name: str) -> Any:
    """Import a name when it is first asked for."""
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.acceptance.{_NAMES[name]}"), name)
