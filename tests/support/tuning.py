"""Passes that take what a test says, in the place of what this machine takes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from cactus_decoding.core.drafting import measuring
from cactus_decoding.core.models.base import BaseCachedModel


def threads_of(model: BaseCachedModel) -> int:
    return torch.get_num_threads() if model.threads is None else model.threads


def pretend(
    monkeypatch: pytest.MonkeyPatch, seconds: Callable[[int, int], float], draft: float, reading: float = 0.0
) -> None:
    """Have passes over some tokens take what a function of them and of the threads says, and drafts what they take."""

    def time_passes(model, widths, *_):
        return {width: seconds(width, threads_of(model)) for width in sorted(widths)}

    monkeypatch.setattr(measuring, "time_runs", lambda *given: [time_passes(*given)])
    monkeypatch.setattr(measuring, "time_drafter", lambda *_: (draft, reading, draft + reading))
