"""Whether a library offers the functions and structures that are asked of it, and what it says when it fails."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping, Sequence
from typing import Any


def first_difference(lib: Any, functions: Mapping[str, str], structures: Mapping[str, Sequence[Any]]) -> str | None:
    """Say what a module of ctypes has otherwise."""
    for name, signature in functions.items():
        function: Any = getattr(lib, name, None)
        if (given := getattr(function, "argtypes", None)) is None:
            return f"it has no function {name}"
        if (found := f"{''.join(map(letter, given))}:{letter(function.restype)}") != signature:
            return f"{name} is {found}, where {signature} is called"
    for name, (sizes, *fields) in structures.items():
        kind = getattr(lib, name, ctypes.Structure)
        known = [field for field, *_ in getattr(kind, "_fields_", ())]
        if missing := [field for field in fields if field not in known]:
            return f"{name} has no {missing[0]}"
        if (size := ctypes.sizeof(kind)) not in sizes:
            return f"{name} has {size} bytes, where it has {' or '.join(map(str, sizes))}"
    return None


def first_changed(structure: Any, values: Mapping[str, Any]) -> str | None:
    """Say which field of a structure that a library has filled in is not what it is known to be."""
    for name, value in values.items():
        if (found := getattr(structure, name)) != value:
            return f"its library and its Python differ: {name} of a new context is {found}, where it is {value}"
    return None


def letter(kind: Any) -> str:
    """Return ctypes' own for a number, L for a size P for a pointer, S for a structure, - for nothing."""
    if kind is None:
        return "-"
    if issubclass(kind, ctypes.Structure):
        return "S"
    code = getattr(kind, "_type_", None)
    return code.replace("Q", "L") if isinstance(code, str) and code not in "PzZ" else "P"


_DAMAGED = re.compile("failed to read|corrupted or incomplete|invalid magic")


def reason(errors: list[str]) -> str:
    """Return the first error without the names of the functions that report it."""
    if not errors:
        return "llama.cpp does not say why"
    said = re.sub(r"^(\w+: )+|error loading model: ", "", " ".join(errors[0].split()))
    return f"{said}: the file is damaged or incomplete; download it again" if _DAMAGED.search(said) else said


def states_go_back(release: str) -> bool:
    """Say whether llama.cpp itself takes recurrent states back as it says.

    Where releases before 0.3.36 of llama-cpp-python do, tokens of Qwen3.5's kind do not follow the rule's distribution.

    Example:
        >>> states_go_back("0.3.35"), states_go_back("0.3.36")
        (False, True)
    """
    return tuple(int(each) for each in release.split(".")[:3]) >= (0, 3, 36)
