"""llama.cpp's C interface: checked when its library is loaded, and called nowhere else."""

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import compress, repeat
from typing import Any, NamedTuple

import numpy as np

from cactus_decoding.core.extras import install_command

TRIED = ("0.3.34", "0.3.35", "0.3.36")  # versions of llama-cpp-python on which the tests of this engine passed
FUNCTIONS = {
    "llama_backend_init": ":-", "llama_context_default_params": ":S", "llama_decode": "PS:i", "llama_free": "P:-",
    "llama_get_logits": "P:P", "llama_get_memory": "P:P", "llama_init_from_model": "PS:P", "llama_log_get": "PP:-",
    "llama_log_set": "PP:-", "llama_memory_seq_cp": "Piiii:-", "llama_memory_seq_pos_max": "Pi:i",
    "llama_memory_seq_rm": "Piii:?",
    "llama_model_default_params": ":S",
    "llama_model_free": "P:-", "llama_model_get_vocab": "P:P", "llama_model_has_decoder": "P:?",
    "llama_model_has_encoder": "P:?", "llama_model_is_diffusion": "P:?", "llama_model_is_hybrid": "P:?",
    "llama_model_is_recurrent": "P:?", "llama_model_load_from_file": "PS:P", "llama_model_meta_val_str": "PPPL:i",
    "llama_model_n_ctx_train": "P:i", "llama_n_batch": "P:I", "llama_n_ctx_seq": "P:I", "llama_n_rs_seq": "P:I",
    "llama_n_seq_max": "P:I", "llama_n_threads_batch": "P:i", "llama_print_system_info": ":P",
    "llama_sampler_accept": "Pi:-", "llama_sampler_apply": "PP:-", "llama_sampler_clone": "P:P",
    "llama_sampler_free": "P:-", "llama_sampler_init_grammar": "PPP:P", "llama_set_n_threads": "Pii:-",
    "llama_state_seq_get_data_ext": "PPLiI:L", "llama_state_seq_get_size_ext": "PiI:L",
    "llama_state_seq_set_data_ext": "PPLiI:L", "llama_supports_gpu_offload": ":?", "llama_token_to_piece": "PiPii?:i",
    "llama_tokenize": "PPiPi??:i", "llama_vocab_bos": "P:i", "llama_vocab_eos": "P:i", "llama_vocab_get_attr": "Pi:i",
    "llama_vocab_get_text": "Pi:P", "llama_vocab_is_eog": "Pi:?", "llama_vocab_n_tokens": "P:i",
    "llama_vocab_type": "P:i",
}  # fmt: skip
"""Those that are called, and what each takes and returns: see `_letter`."""
STRUCTURES = {
    "llama_batch": ((56,), "n_tokens", "token", "embd", "pos", "n_seq_id", "seq_id", "logits"),
    "llama_context_params": (
        (160,), "n_ctx", "n_rs_seq", "n_seq_max", "n_threads", "n_threads_batch", "flash_attn_type", "type_k",
        "type_v", "swa_full", "kv_unified",
    ),
    "llama_model_params": ((72, 80), "n_gpu_layers", "vocab_only"),
    "llama_token_data": ((12,), "id", "logit", "p"),
    "llama_token_data_array": ((32,), "data", "size", "selected", "sorted"),
}  # fmt: skip
"""Those that are filled in: how many bytes each may have, and which of their fields."""
_DEFAULTS = {"n_ctx": 512, "n_batch": 2048, "n_seq_max": 1, "swa_full": True, "kv_unified": False}
"""Of a context, as llama.cpp itself fills them in: read at another place, they would be other numbers."""
_INSTALL = f"install a version that was tried: pip install 'llama-cpp-python>={TRIED[0]},<={TRIED[-1]}'"
_ERROR = 4  # the level of errors in ``ggml.h``; llama-cpp-python's comments still have the levels of an older one
_CACHE_TYPES = {"float32": 0, "float16": 1}  # ``GGML_TYPE_F32`` and ``GGML_TYPE_F16``
_NO_FLASH_ATTENTION, _SENTENCE_PIECE = 0, 1  # ``LLAMA_FLASH_ATTN_TYPE_DISABLED``; ``LLAMA_VOCAB_TYPE_SPM``
_UNUSED, _SPECIAL = 2, 1 | 8  # of ``llama_token_attr``: unknown ones and those that control are special
_SHORT_TEXT, _STACK_PER_BYTE = 1_000, 1_024
"""Bytes of a text that any stack suffices for, and of stack for each byte of a longer one (321 were measured)."""
_STACKS = threading.Lock()
CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])  # ``llama_token_data``
_LOG = threading.RLock()


@cache
def library() -> Any:
    try:
        from llama_cpp import llama_cpp
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "llama_cpp":
            raise
        raise ValueError(f"GGUF files need llama-cpp-python: run {install_command('llama-cpp')}") from None
    except (OSError, RuntimeError, AttributeError) as error:  # the last where its Python is of another release
        raise ValueError(f"llama-cpp-python's library cannot be loaded: {error}: {_INSTALL}") from error
    check_interface(llama_cpp)
    llama_cpp.llama_backend_init()
    return llama_cpp


def check_interface(lib: Any) -> None:
    """Raise `ValueError` for a version with other names or signatures than those that were tried."""
    if wrong := _first_difference(lib) or _first_changed(lib.llama_context_default_params()):
        raise ValueError(refusal(installed_version(), wrong))


def _first_difference(lib: Any) -> str | None:
    for name, signature in FUNCTIONS.items():
        function: Any = getattr(lib, name, None)
        if (given := getattr(function, "argtypes", None)) is None:
            return f"it has no function {name}"
        if (found := f"{''.join(map(_letter, given))}:{_letter(function.restype)}") != signature:
            return f"{name} is {found}, where {signature} is called"
    for name, (sizes, *fields) in STRUCTURES.items():
        kind = getattr(lib, name, ctypes.Structure)
        known = [field for field, *_ in getattr(kind, "_fields_", ())]
        if missing := [field for field in fields if field not in known]:
            return f"{name} has no {missing[0]}"
        if (size := ctypes.sizeof(kind)) not in sizes:
            return f"{name} has {size} bytes, where it has {' or '.join(map(str, sizes))}"
    return None


def _first_changed(params: Any) -> str | None:
    for name, value in _DEFAULTS.items():
        if (found := getattr(params, name)) != value:
            return f"its library and its Python differ: {name} of a new context is {found}, where it is {value}"
    return None


def _letter(kind: Any) -> str:
    """Return ctypes' own for a number, L for a size P for a pointer, S for a structure, - for nothing."""
    if kind is None:
        return "-"
    if issubclass(kind, ctypes.Structure):
        return "S"
    code = getattr(kind, "_type_", None)
    return code.replace("Q", "L") if isinstance(code, str) and code not in "PzZ" else "P"


def installed_version() -> str:
    import llama_cpp

    version: str = llama_cpp.__version__
    return version


def refusal(version: str, problem: str) -> str:
    return f"llama-cpp-python {version} does not pass the check of names, signatures and numbers: {problem}; {_INSTALL}"


def states_go_back(release: str) -> bool:
    """Say whether llama.cpp itself takes recurrent states back as it says.

    Where releases before 0.3.36 of llama-cpp-python do, tokens of Qwen3.5's kind do not follow the rule's distribution.

    Example:
        >>> states_go_back("0.3.35"), states_go_back("0.3.36")
        (False, True)
    """
    return tuple(int(each) for each in release.split(".")[:3]) >= (0, 3, 36)


@contextmanager
def captured_errors() -> Iterator[list[str]]:
    """Collect what llama.cpp says of errors meanwhile; none of its log is written to the terminal.

    The log is one for the whole process: afterwards it goes where it went before, and other threads wait till then.
    """
    with _LOG:
        lib, (collect, errors) = library(), _collector()
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


_DAMAGED = re.compile("failed to read|corrupted or incomplete|invalid magic")


def reason(errors: list[str]) -> str:
    """Return the first error without the names of the functions that report it."""
    if not errors:
        return "llama.cpp does not say why"
    said = re.sub(r"^(\w+: )+|error loading model: ", "", " ".join(errors[0].split()))
    return f"{said}: the file is damaged or incomplete; download it again" if _DAMAGED.search(said) else said


def system_information() -> str:
    """Return which instructions of the processor llama.cpp was built for, in its own words."""
    return str(library().llama_print_system_info().decode(errors="replace"))


def offloads() -> bool:
    return bool(library().llama_supports_gpu_offload())


def load_handle(path: str, gpu_layers: int, vocab_only: bool) -> int:
    """Return the handle of a file's model; raise `ValueError` with llama.cpp's reason."""
    params = library().llama_model_default_params()
    params.n_gpu_layers, params.vocab_only = gpu_layers, vocab_only
    return _handle_of(library().llama_model_load_from_file, path.encode(), params)


def _handle_of(make: Callable[..., int | None], *arguments: Any) -> int:
    with captured_errors() as errors:
        handle = make(*arguments)
    if not handle:
        raise ValueError(reason(errors))
    return int(handle)


def free_model(model: int) -> None:
    with captured_errors():
        library().llama_model_free(model)


def describe(model: int) -> tuple[int, int, int, bool]:
    """Return a model's vocabulary, the width of its logits, its longest text's length, and whether it keeps a state."""
    lib, vocab = library(), library().llama_model_get_vocab(model)
    recurrent = lib.llama_model_is_recurrent(model) or lib.llama_model_is_hybrid(model)
    return vocab, int(lib.llama_vocab_n_tokens(vocab)), int(lib.llama_model_n_ctx_train(model)), bool(recurrent)


def obstacle(model: int) -> str | None:
    """Say why a model cannot take part in draft-and-verify decoding."""
    if library().llama_model_has_encoder(model) or not library().llama_model_has_decoder(model):
        return "has an encoder; allowed are decoder-only causal language models"
    if library().llama_model_is_diffusion(model):
        return "writes all of a text at once, and no token after another"
    return None


def metadata(model: int, key: str) -> str:
    """Return what a file says of itself under a key; nothing where it does not."""
    lib, buffer = library(), ctypes.create_string_buffer(0)
    length = lib.llama_model_meta_val_str(model, key.encode(), buffer, 0)
    if length < 0:
        return ""
    buffer = ctypes.create_string_buffer(length + 1)
    lib.llama_model_meta_val_str(model, key.encode(), buffer, length + 1)
    return buffer.value.decode(errors="replace")


class Words(NamedTuple):
    special: list[int]
    unused: list[int]
    eos: int | None
    bos: int | None
    sentence_piece: bool


def words(vocab: int, size: int) -> Words:
    lib = library()
    attributes = list(map(lib.llama_vocab_get_attr, repeat(vocab), range(size)))
    special, unused = ([i for i, each in enumerate(attributes) if each & of] for of in (_SPECIAL, _UNUSED))
    ends = (int(lib.llama_vocab_eos(vocab)), int(lib.llama_vocab_bos(vocab)))
    eos, bos = (None if each < 0 else each for each in ends)
    return Words(special, unused, eos, bos, lib.llama_vocab_type(vocab) == _SENTENCE_PIECE)


def end_tokens(vocab: int, size: int) -> list[int]:
    return [*compress(range(size), map(library().llama_vocab_is_eog, repeat(vocab), range(size)))]


def token_texts(vocab: int, size: int) -> list[bytes]:
    return list(map(library().llama_vocab_get_text, repeat(vocab), range(size)))


def token_piece(vocab: int, token: int) -> bytes:
    room = 64
    while True:
        buffer = ctypes.create_string_buffer(room)
        length = library().llama_token_to_piece(vocab, token, buffer, room, 0, True)
        if length >= 0:
            return buffer.raw[:length]
        room = -length


def tokenize(vocab: int, text: str, add_special_tokens: bool) -> list[int]:
    """Return a text's tokens; names of special tokens in it become these.

    Many vocabularies split texts by expressions of the C++ library, which takes a call for each letter that one
    matches: a hundred thousand letters without a space overflow an ordinary stack, and end the process.
    """
    data = text.encode()
    if len(data) <= _SHORT_TEXT:
        return _tokenized(vocab, data, add_special_tokens)
    found = list[list[int]]()
    work = threading.Thread(target=lambda: found.append(_tokenized(vocab, data, add_special_tokens)))
    with _STACKS:
        before = threading.stack_size(_STACK_PER_BYTE * (len(data) + _SHORT_TEXT))
        try:
            work.start()
        except (RuntimeError, MemoryError):
            raise ValueError(f"a text of {len(data):,} bytes is too long to be read as tokens at once") from None
        finally:
            threading.stack_size(before)
    work.join()
    return found[0]


def _tokenized(vocab: int, data: bytes, add_special_tokens: bool) -> list[int]:
    room = len(data) + 8  # a token is a byte at least; then those at both ends
    while True:
        ids = (ctypes.c_int32 * room)()
        count = library().llama_tokenize(vocab, data, len(data), ids, room, add_special_tokens, True)
        if count >= 0:
            return ids[:count]
        room = -count


def make_context(
    model: int, size: int, sequences: int, threads: int, cache: str, max_undo: int, branches: int = 0
) -> int:
    """Return the handle of an empty context of so many tokens for each text; `ValueError` with llama.cpp's reason."""
    lib = library()
    params = lib.llama_context_default_params()
    # a stream of keys and values for each text: where they lie is then what it is for one alone
    params.n_ctx, params.n_seq_max, params.kv_unified = size * sequences, sequences + branches, branches > 0
    params.n_threads, params.n_threads_batch, params.n_rs_seq = threads, threads, max_undo
    params.type_k = params.type_v = _CACHE_TYPES[cache]
    if cache == "float32":
        params.flash_attn_type = _NO_FLASH_ATTENTION  # it would round keys and values to float16
    # sliding windows keep all they have seen: what they forget could not be rolled back to
    params.swa_full = True
    return _handle_of(lib.llama_init_from_model, model, params)


def free_context(context: int) -> None:
    with captured_errors():
        library().llama_free(context)


def room(context: int) -> tuple[int | None, int, int, int, int, int]:
    """Return a context's memory, if any, its tokens of a text and of a batch, texts, threads, and undone tokens."""
    lib = library()
    numbers = (lib.llama_n_ctx_seq, lib.llama_n_batch, lib.llama_n_seq_max, lib.llama_n_threads_batch)
    length, batch, sequences, threads = (int(number(context)) for number in numbers)
    return lib.llama_get_memory(context), length, batch, sequences, threads, int(lib.llama_n_rs_seq(context))


def set_threads(context: int, count: int) -> None:
    with captured_errors():  # it tells of every change
        library().llama_set_n_threads(context, count, count)


def forget(memory: int, sequence: int, start: int) -> bool:
    """Forget a text from a place on; say whether that can be done."""
    return bool(library().llama_memory_seq_rm(memory, sequence, start, -1))


def num_held(memory: int, sequence: int) -> int:
    """Return how many tokens of a text are in memory."""
    return int(library().llama_memory_seq_pos_max(memory, sequence)) + 1


def branch_off(memory: int, branch: int) -> None:
    """Let an empty branch begin as the first text, whose cells both then have."""
    library().llama_memory_seq_cp(memory, 0, branch, -1, -1)


def save_state(context: int, sequence: int, partial: bool = False) -> np.ndarray[Any, Any]:
    """Return a copy of all that is cached of a text, or of its recurrent state alone."""
    lib = library()
    saved = np.empty(lib.llama_state_seq_get_size_ext(context, sequence, partial), np.uint8)
    pointer = _pointer(saved, ctypes.c_uint8)
    return saved[: lib.llama_state_seq_get_data_ext(context, pointer, len(saved), sequence, partial)]


def restore_state(context: int, sequence: int, saved: np.ndarray[Any, Any], partial: bool = False) -> None:
    pointer = _pointer(saved, ctypes.c_uint8)
    with captured_errors() as errors:
        taken = library().llama_state_seq_set_data_ext(context, pointer, len(saved), sequence, partial)
    if not taken:
        raise RuntimeError(f"llama.cpp could not take {len(saved)} bytes of a saved text: {reason(errors)}")


class Batch:
    """The memory of what is read at once.

    Attributes:
        tokens, positions, wanted: of each token its number, its place, and whether logits after it are.
        sequence_of, num_sequences: pointers to the numbers of its texts, and how many these are: usually one.
    """

    def __init__(self, size: int) -> None:
        self.tokens, self.positions, self.num_sequences = (np.zeros(size, np.int32) for _ in range(3))
        self.wanted, self.num_sequences[:], self.sequence_of = np.zeros(size, np.int8), 1, np.zeros(size, np.uintp)
        self._batch = library().llama_batch(
            token=_pointer(self.tokens, ctypes.c_int32),
            embd=None,
            pos=_pointer(self.positions, ctypes.c_int32),
            n_seq_id=_pointer(self.num_sequences, ctypes.c_int32),
            seq_id=_pointer(self.sequence_of, ctypes.POINTER(ctypes.c_int32)),
            logits=_pointer(self.wanted, ctypes.c_int8),
        )

    def read(self, context: int, count: int) -> str | None:
        """Read the first tokens; say what is wrong where that cannot be."""
        self._batch.n_tokens = count
        with captured_errors() as errors:
            status = library().llama_decode(context, self._batch)
        return f"({status}): {reason(errors)}" if status != 0 else None


def logits(context: int, rows: int, width: int) -> np.ndarray[Any, Any]:
    """Return those after the wanted tokens of the last batch, in llama.cpp's own memory."""
    return np.ctypeslib.as_array(library().llama_get_logits(context), (rows, width))


def make_grammar(vocab: int, grammar: str, root: str) -> Any:
    """Return the handle of a grammar's state before any token; nothing for one that llama.cpp cannot read."""
    with captured_errors():
        return library().llama_sampler_init_grammar(vocab, grammar.encode(), root.encode())


def free_grammar(state: Any) -> None:
    library().llama_sampler_free(state)


def mask_by_grammar(state: Any, candidates: np.ndarray[Any, Any]) -> None:
    lib = library()
    pointer = candidates.ctypes.data_as(lib.llama_token_data_p)
    lib.llama_sampler_apply(state, lib.llama_token_data_array(pointer, len(candidates), -1, False))


def grammar_behind(state: Any, token: int) -> Any:
    after = library().llama_sampler_clone(state)
    library().llama_sampler_accept(after, token)
    return after


def _pointer(array: np.ndarray[Any, Any], kind: Any) -> Any:
    return array.ctypes.data_as(ctypes.POINTER(kind))
