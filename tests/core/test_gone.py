"""What users type and is gone: each way to type it is refused by a sentence that names what remains."""

import re

import pytest

from cactus_decoding import load_pair
from cactus_decoding.core.gone import GONE

SKIP = f"it is gone: use {GONE['skip']}"
COMMANDS = [
    ("generate Hello --draft skip", SKIP),
    ("generate Hello --draft skip:layers=3-5,mlp=7", SKIP),
    ("eval --draft skip --output {new}", SKIP),
    ("frontier --draft skip --output {new}", SKIP),
    ("tune bundled skip", SKIP),
    ("play --draft skip:attention=all", SKIP),
    ("serve {gguf} --draft skip", SKIP),
]
"""What is typed, and words of the answer."""
CALLS = {
    "load_pair": (lambda gguf: load_pair(draft="skip"), SKIP),
    "with_draft": (lambda gguf: load_pair().with_draft("skip:layers=3"), SKIP),
    "CactusLlama": (lambda gguf: llama(gguf, draft="skip:mlp=all"), SKIP),
}


def llama(path, **given):
    from cactus_decoding.engines.llama_cpp import CactusLlama

    return CactusLlama(path, **given)


@pytest.mark.parametrize(("typed", "words"), COMMANDS, ids=[typed for typed, _ in COMMANDS])
def test_commands_name_what_remains(run, gguf, tmp_path, typed, words):
    filled = {"{new}": str(tmp_path / "new"), "{gguf}": str(gguf("draft"))}
    code, _, error = run(*(filled.get(word, word) for word in typed.split()))
    assert code == 2
    assert words in error


@pytest.mark.parametrize("name", CALLS)
def test_calls_name_what_remains(gguf, name):
    call, words = CALLS[name]
    with pytest.raises(ValueError, match=re.escape(words)):
        call(gguf("draft"))
