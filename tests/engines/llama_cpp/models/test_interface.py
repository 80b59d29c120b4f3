"""What is called of llama.cpp is what is declared, and another release is refused before it is called."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import llama_cpp.llama_cpp as lib
import pytest

import cactus_decoding
from cactus_decoding.engines.llama_cpp.models.library import FUNCTIONS, STRUCTURES, check_interface


def test_what_is_declared_is_what_is_called_and_is_there_in_one_file():
    check_interface(lib)
    sources = {path.name: path.read_text() for path in Path(cactus_decoding.__file__).parent.rglob("*.py")}
    called = {
        name: set(re.findall(r"\b(?:lib|library\(\)|llama_cpp)\.(llama_\w+)", text)) for name, text in sources.items()
    }
    types = {"llama_log_callback", "llama_token_data_p"}
    assert called.pop("library.py") - types - {*STRUCTURES} == {*FUNCTIONS}
    modules = {"llama_grammar", "llama_chat_format", "llama_speculative"}
    assert set().union(*called.values()) <= modules, "of llama-cpp-python"


def otherwise(**changed):
    return SimpleNamespace(**vars(lib) | changed)


def function(count):
    made = ctypes.CFUNCTYPE(None, *[ctypes.c_int] * count)()
    made.argtypes = [ctypes.c_int] * count
    return made


def params(**changed):
    def make():
        return SimpleNamespace(n_ctx=512, n_batch=2048, swa_full=True, kv_unified=False, **changed)

    make.argtypes, make.restype = [], lib.llama_context_params
    return make


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"llama_decode": None}, "it has no function llama_decode"),
        ({"llama_decode": function(3)}, "llama_decode is iii:-, where PS:i is called"),
        ({"llama_batch": type("other", (), {"_fields_": [("n_tokens", int)]})}, "llama_batch has no token"),
        (
            {"llama_token_data": type("other", (lib.llama_token_data,), {"_fields_": [("more", ctypes.c_int)]})},
            "has no id",
        ),
        ({"llama_context_default_params": params(n_seq_max=7)}, "n_seq_max of a new context is 7, where it is 1"),
    ],
)
def test_another_release_is_refused_with_what_to_install(changed, said):
    with pytest.raises(ValueError, match=f"does not pass the check .*{said}; install .*llama-cpp-python>="):
        check_interface(otherwise(**changed))


def test_a_library_that_is_not_that_of_its_python_is_told_apart(tmp_path):
    other = next((Path(lib.__file__).parent / "lib").glob("libggml-base.*"))
    shutil.copy(other, tmp_path / f"libllama{other.suffix if other.suffix == '.dylib' else '.so'}")
    code = "from cactus_decoding.engines.llama_cpp import CactusLlama"
    environment = os.environ | {"LLAMA_CPP_LIB_PATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert re.search("ValueError: .* library cannot be loaded: .*pip install .llama-cpp-python>=", done.stderr), (
        done.stderr
    )
