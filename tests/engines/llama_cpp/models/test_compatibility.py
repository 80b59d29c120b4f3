"""Versions of llama-cpp-python: what is tried, and how a newer one is checked, warned of or refused."""

import ctypes
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import llama_cpp
import llama_cpp.llama_cpp as lib
import pytest
from support.code_blocks import ROOT

import cactus_decoding
from cactus_decoding.engines.llama_cpp.models import compatibility, library
from cactus_decoding.engines.llama_cpp.models.library import FUNCTIONS, STRUCTURES, check_interface
from scripts.llama_cpp_check_model import write

INSTALL = "install a version that was tried: pip install 'llama-cpp-python>=0.3.34,<=0.3.36'"
REFUSED = "ValueError: llama-cpp-python 0.3.99 does not pass the check of names, signatures and numbers: "
NEWER = f'''
"""The installed package, as a later version of it."""
__version__, __path__ = "0.3.99", [{str(Path(llama_cpp.__file__).parent)!r}]
from llama_cpp import llama_cpp as low
'''
"""What every fake newer version begins with; Python finds it in place of the installed one."""
OPEN = """
from pathlib import Path
from cactus_decoding.engines.llama_cpp.models.compatibility import MODEL
from cactus_decoding.engines.llama_cpp.models.weights import GgufWeights
GgufWeights.load("target", MODEL)
GgufWeights.load("target", MODEL, vocab_only=True)
print("opened")
"""


def said_of(changes: str, folder: Path) -> tuple[str, list[str]]:
    """Open a file with a fake newer version; return what is printed, and warnings and errors without their places."""
    (folder / "llama_cpp").mkdir()
    (folder / "llama_cpp" / "__init__.py").write_text(NEWER + changes)
    seen = [str(folder), os.environ.get("PYTHONPATH", "")]
    variables = {"PYTHONPATH": os.pathsep.join(filter(None, seen))}
    command = [sys.executable, "-c", OPEN]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | variables)
    lines = done.stderr.splitlines()
    return done.stdout, [line for line in lines if "UserWarning: " in line or "Error: " in line]


def test_the_small_model_is_what_its_script_writes(tmp_path):
    write(tmp_path / "check.gguf")
    assert (tmp_path / "check.gguf").read_bytes() == compatibility.MODEL.read_bytes()


def test_a_version_of_the_table_is_not_checked(monkeypatch):
    monkeypatch.setattr(compatibility, "_problem_elsewhere", lambda: pytest.fail("it was checked"))
    for version in library.TRIED:
        monkeypatch.setattr(library, "installed_version", lambda version=version: version)
        compatibility.check_llama_cpp()


def test_the_range_begins_with_the_lowest_version_that_was_tried():
    dependencies = (ROOT / "pyproject.toml").read_text()
    assert dependencies.count(f'"llama-cpp-python>={library.TRIED[0]},<0.4"') == 2


def test_the_installed_version_passes():
    assert compatibility.changed_numbers() is None


def test_a_newer_version_that_passes_is_warned_of_once(tmp_path):
    printed, (warning,) = said_of("", tmp_path)
    assert printed == "opened\n"
    assert warning.endswith(
        "UserWarning: llama-cpp-python 0.3.99 is newer than 0.3.36, the newest version that was tried; "
        "it passed the check"
    )


ANOTHER_COLUMN = """
import ctypes
stock = low.llama_get_logits
def llama_get_logits(context):
    return ctypes.cast(ctypes.addressof(stock(context).contents) + 4, ctypes.POINTER(ctypes.c_float))
llama_get_logits.argtypes, llama_get_logits.restype = stock.argtypes, stock.restype
low.llama_get_logits = llama_get_logits
"""
SHIFTED_IN_PARTS = """
stock = low.llama_decode
def llama_decode(context, batch):
    if batch.n_tokens < 8:
        batch.token[0] = 3
    return stock(context, batch)
llama_decode.argtypes, llama_decode.restype = stock.argtypes, stock.restype
low.llama_decode = llama_decode
"""
NO_ROOM = """
import ctypes
stock = low.llama_decode
def llama_decode(context, batch):
    return stock(context, batch) if batch.n_tokens < 12 else 1
llama_decode.argtypes, llama_decode.restype = stock.argtypes, stock.restype
low.llama_decode = llama_decode
"""
CRASH = """
import os, signal
stock = low.llama_memory_seq_rm
def llama_memory_seq_rm(*args):
    os.kill(os.getpid(), signal.SIGSEGV)
llama_memory_seq_rm.argtypes, llama_memory_seq_rm.restype = stock.argtypes, stock.restype
low.llama_memory_seq_rm = llama_memory_seq_rm
"""
FORGETFUL = """
stock = low.llama_memory_seq_rm
def llama_memory_seq_rm(memory, sequence, start, end):
    return True
llama_memory_seq_rm.argtypes, llama_memory_seq_rm.restype = stock.argtypes, stock.restype
low.llama_memory_seq_rm = llama_memory_seq_rm
"""


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ("del low.llama_n_rs_seq", "it has no function llama_n_rs_seq"),
        (ANOTHER_COLUMN, "the likeliest tokens after a text are [11, 11, 8, "),
        (SHIFTED_IN_PARTS, "rows read with a cache differ from rows read without by "),
        (NO_ROOM, "a small model cannot be read and taken back (RuntimeError: 12 tokens after 0 (1): "),
        (FORGETFUL, "a small model cannot be read and taken back (RuntimeError: 1 tokens after 8 (-1): "),
        (CRASH, "a process that reads a small model with it ends with exit code -11"),
    ],
)
def test_a_newer_version_that_differs_is_refused_with_what_to_install(changes, problem, tmp_path):
    printed, (error,) = said_of(changes, tmp_path)
    assert printed == ""
    assert error.startswith(REFUSED + problem)
    assert error.endswith("; " + INSTALL)


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


def longer(structure):
    return type("longer", (ctypes.Structure,), {"_fields_": [*structure._fields_, ("more", ctypes.c_int)]})


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
        ({"llama_batch": longer(lib.llama_batch)}, "llama_batch has 64 bytes, where it has 56"),
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
