"""llama.cpp's library, imported when it is first needed, and what it says when it fails."""

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from cactus_decoding.arguments.extras import install
from cactus_decoding.models.llama_cpp.interface import check_interface

_LOG = threading.RLock()
_ERROR = 4
"""The level of errors in ``ggml.h``; llama-cpp-python's comments still have the levels of an older one."""


@cache
def library() -> Any:
    """Return llama-cpp-python's low-level interface.

    Raises:
        ValueError: where it is not installed, is another release, or its library cannot be loaded.
    """
    try:
        from llama_cpp import llama_cpp
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "llama_cpp":
            raise
        raise ValueError(f"GGUF files need llama-cpp-python: run {install('llama-cpp')}") from None
    except (OSError, RuntimeError, FileNotFoundError) as error:
        raise ValueError(f"llama-cpp-python's library cannot be loaded: {error}") from error
    check_interface(llama_cpp)
    llama_cpp.llama_backend_init()
    return llama_cpp


@contextmanager
def captured_errors() -> Iterator[list[str]]:
    """Collect what llama.cpp says of errors meanwhile; none of its log is written to the terminal.

    The log is one for the whole process: afterwards it goes where it went before, and other threads wait till then.
    """
    with _LOG:
        yield from _captured_errors()


def _captured_errors() -> Iterator[list[str]]:
    lib = library()
    collect, errors = _collector()
    before, data = lib.llama_log_callback(), ctypes.c_void_p()
    lib.llama_log_get(ctypes.byref(before), ctypes.byref(data))
    errors.clear()
    lib.llama_log_set(collect, None)
    try:
        yield errors
    finally:
        lib.llama_log_set(before, data)


@cache
def _collector() -> tuple[Any, list[str]]:
    """Return the one function that llama.cpp calls, which must never be freed, and the list that it fills."""
    errors = list[str]()

    def collect(level: int, text: bytes, _: object) -> None:
        if level == _ERROR:
            errors.append(text.decode(errors="replace").strip())

    return library().llama_log_callback(collect), errors


def reason(errors: list[str]) -> str:
    """Return the first error without the names of the functions that report it.

    Example:
        >>> reason(["llama_model_load: error loading model: tensor 'x' is missing", "llama_load: failed"])
        "tensor 'x' is missing"
    """
    if not errors:
        return "llama.cpp does not say why"
    return re.sub(r"^(\w+: )+|error loading model: ", "", " ".join(errors[0].split()))
