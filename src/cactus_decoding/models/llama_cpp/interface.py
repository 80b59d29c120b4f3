"""All that is called of llama.cpp: what llama-cpp-python must offer, checked when its library is loaded."""

from __future__ import annotations

import ctypes
from typing import Any

from cactus_decoding.arguments.extras import install

FUNCTIONS = {
    "llama_context_default_params": 0, "llama_decode": 2, "llama_free": 1, "llama_get_logits": 1,
    "llama_get_memory": 1, "llama_init_from_model": 2, "llama_log_get": 2, "llama_log_set": 2,
    "llama_memory_seq_rm": 4, "llama_model_default_params": 0, "llama_model_free": 1, "llama_model_get_vocab": 1,
    "llama_model_has_decoder": 1, "llama_model_has_encoder": 1, "llama_model_is_diffusion": 1,
    "llama_model_is_hybrid": 1, "llama_model_is_recurrent": 1, "llama_model_load_from_file": 2,
    "llama_model_meta_val_str": 4, "llama_model_n_ctx_train": 1, "llama_n_batch": 1, "llama_n_ctx_seq": 1,
    "llama_n_seq_max": 1, "llama_n_threads_batch": 1, "llama_sampler_accept": 2, "llama_sampler_apply": 2,
    "llama_sampler_clone": 1, "llama_sampler_free": 1, "llama_sampler_init_grammar": 3, "llama_set_n_threads": 3,
    "llama_state_seq_get_data": 4, "llama_state_seq_get_size": 2, "llama_state_seq_set_data": 4,
    "llama_supports_gpu_offload": 0, "llama_token_to_piece": 6, "llama_tokenize": 7, "llama_vocab_bos": 1,
    "llama_vocab_eos": 1, "llama_vocab_get_attr": 2, "llama_vocab_get_text": 2, "llama_vocab_is_eog": 2,
    "llama_vocab_n_tokens": 1, "llama_vocab_type": 1,
}  # fmt: skip
"""Those that are called, and how many arguments each takes."""
STRUCTURES = {
    "llama_batch": ("n_tokens", "token", "embd", "pos", "n_seq_id", "seq_id", "logits"),
    "llama_context_params": (
        "n_ctx", "n_seq_max", "n_threads", "n_threads_batch", "flash_attn_type", "type_k", "type_v", "swa_full",
        "kv_unified",
    ),
    "llama_model_params": ("n_gpu_layers", "vocab_only"),
    "llama_token_data": ("id", "logit", "p"),
    "llama_token_data_array": ("data", "size", "selected", "sorted"),
}  # fmt: skip
"""Those that are filled in, and which of their fields."""
_TOKEN_DATA = 12
"""Bytes of ``llama_token_data``, of which arrays are made here."""
_DEFAULTS = {"n_ctx": 512, "n_batch": 2048, "n_seq_max": 1, "swa_full": True, "kv_unified": False}
"""Of a context, as llama.cpp itself fills them in: read at another place, they would be other numbers."""


def check_interface(lib: Any) -> None:
    """Raise `ValueError` for a release that is not the one that this package was written for, before it is called.

    Args:
        lib: llama-cpp-python's low-level module.
    """
    if wrong := _first_difference(lib):
        from llama_cpp import __version__

        raise ValueError(f"llama-cpp-python {__version__} does not fit, because {wrong}: run {install('llama-cpp')}")


def _first_difference(lib: Any) -> str | None:
    for name, count in FUNCTIONS.items():
        given = getattr(getattr(lib, name, None), "argtypes", None)
        if given is None:
            return f"it has no function {name}"
        if len(given) != count:
            return f"{name} takes {len(given)} arguments, where {count} are given"
    for name, fields in STRUCTURES.items():
        known = [field for field, *_ in getattr(getattr(lib, name, None), "_fields_", ())]
        if missing := [field for field in fields if field not in known]:
            return f"{name} has no {missing[0]}"
    if (size := ctypes.sizeof(lib.llama_token_data)) != _TOKEN_DATA:
        return f"llama_token_data has {size} bytes, where {_TOKEN_DATA} are written"
    params = lib.llama_context_default_params()
    for name, value in _DEFAULTS.items():
        if (found := getattr(params, name)) != value:
            return f"its library and its Python differ: {name} of a new context is {found}, where it is {value}"
    return None
