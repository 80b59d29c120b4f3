"""Replacing functions of vLLM."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from cactus_decoding.engines.vllm.patches import STOCK, is_replaced, replace


def test_a_function_is_replaced_wherever_vllm_has_imported_it_and_only_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer() -> int:
        """Give it."""
        return 6

    modules = {name: ModuleType(name) for name in ("vllm.owner", "vllm.user", "vllm.other", "others.user")}
    for name, module in modules.items():
        module.answer = answer
        monkeypatch.setitem(sys.modules, name, module)
    modules["vllm.other"].answer = other = lambda: 5
    replace(modules["vllm.owner"], "answer", lambda stock: lambda: stock() + 1)
    replaced = modules["vllm.owner"].answer
    assert (replaced(), replaced.__doc__, getattr(replaced, STOCK)) == (7, "Give it.", answer)
    assert modules["vllm.user"].answer is replaced
    assert modules["vllm.other"].answer is other
    assert modules["others.user"].answer is answer
    replace(modules["vllm.owner"], "answer", lambda stock: lambda: 0)  # once only
    assert modules["vllm.owner"].answer is replaced
    assert is_replaced(replaced)
    assert not is_replaced(answer)
