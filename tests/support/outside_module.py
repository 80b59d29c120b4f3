"""A module with a rule of its own, of which is seen whether it was imported."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

SOURCE = """
from dataclasses import dataclass
from pathlib import Path
from cactus_decoding.core.rules import Lossless

Path(__file__).with_suffix(".imported").touch()

@dataclass(frozen=True)
class Mine(Lossless):
    name = "mine"
"""


@dataclass(frozen=True)
class OutsideModule:
    file: Path

    @property
    def spelling(self) -> str:
        return f"{self.file.stem}:Mine"

    @property
    def was_imported(self) -> bool:
        return self.file.stem in sys.modules or self.file.with_suffix(".imported").exists()


def outside_module(folder: Path, monkeypatch: pytest.MonkeyPatch) -> OutsideModule:
    """Write a module that can be imported, under a name that no other test has."""
    file = folder / f"outside_{folder.name}.py"
    file.write_text(SOURCE)
    monkeypatch.syspath_prepend(folder)
    return OutsideModule(file)
