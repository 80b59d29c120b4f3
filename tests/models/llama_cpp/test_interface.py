"""What is called of llama.cpp is what is declared, and another release is refused before it is called."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from types import SimpleNamespace

import llama_cpp.llama_cpp as lib
import pytest

import cactus_decoding
from cactus_decoding.models.llama_cpp.interface import FUNCTIONS, STRUCTURES, check_interface


def test_what_is_declared_is_what_is_called_and_is_there():
    check_interface(lib)
    root = Path(cactus_decoding.__file__).parent
    sources = [path.read_text() for path in root.glob("*/llama_cpp/*.py") if path.name != "interface.py"]
    called = {name for text in sources for name in re.findall(r"\b(?:lib|library\(\)|llama_cpp)\.(llama_\w+)", text)}
    types = {"llama_log_callback", "llama_token_data_p", "llama_backend_init", "llama_grammar", "llama_chat_format"}
    assert called - types - {*STRUCTURES} == {*FUNCTIONS}


def otherwise(**changed):
    return SimpleNamespace(**vars(lib) | changed)


def function(count):
    made = ctypes.CFUNCTYPE(None, *[ctypes.c_int] * count)()
    made.argtypes = [ctypes.c_int] * count
    return made


def params(**changed):
    def make():
        return SimpleNamespace(n_ctx=512, n_batch=2048, swa_full=True, kv_unified=False, **changed)

    make.argtypes = []
    return make


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"llama_decode": None}, "it has no function llama_decode"),
        ({"llama_decode": function(3)}, "llama_decode takes 3 arguments, where 2 are given"),
        ({"llama_batch": type("other", (), {"_fields_": [("n_tokens", int)]})}, "llama_batch has no token"),
        ({"llama_context_default_params": params(n_seq_max=7)}, "n_seq_max of a new context is 7, where it is 1"),
    ],
)
def test_another_release_is_refused_with_what_to_install(changed, said):
    with pytest.raises(ValueError, match=f"does not fit, because .*{said}: run .*llama-cpp"):
        check_interface(otherwise(**changed))
