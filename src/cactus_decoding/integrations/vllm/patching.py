"""Replacing a function of vLLM by one that wraps it."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

STOCK = "_cactus_decoding_stock"
"""What a replaced function keeps the stock one under."""


def replace(owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:
    """Put ``wrap(stock)`` in the place of a function of a module or class, once, also where vLLM imported it by name.

    Example:
        >>> class Owner:
        ...     def answer(self):
        ...         return 6
        >>> for _ in range(2):
        ...     replace(Owner, "answer", lambda stock: lambda self: 7 * stock(self))
        >>> Owner().answer()
        42
    """
    stock = getattr(owner, name)
    if is_replaced(stock):
        return
    wrapped = functools.wraps(stock)(wrap(stock))
    setattr(wrapped, STOCK, stock)
    setattr(owner, name, wrapped)
    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").startswith("vllm.") and vars(module).get(name) is stock:
            setattr(module, name, wrapped)


def is_replaced(function: Any) -> bool:
    """Say whether `replace` has been here."""
    return hasattr(function, STOCK)
