"""torch, imported where it is first used: what is asked for can be read and checked without it."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or "torch" in sys.modules:
    import torch as torch
    from torch import Tensor as Tensor
    from torch.nn import functional as functional
else:

    class Tensor:
        """Stands for `torch.Tensor` in annotations."""

    class _Later:
        """Imports a module for the first of its names that is used."""

        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, name: str) -> Any:
            value = getattr(import_module(self._name), name)
            setattr(self, name, value)
            return value

    torch, functional = _Later("torch"), _Later("torch.nn.functional")
