import pytest
from llama_cpp import Llama

from cactus_decoding.engines.llama_cpp.llama import CactusLlama

SHAPE = {"n_ctx": 512, "n_threads": 1, "n_threads_batch": 1, "type_k": 0, "type_v": 0, "verbose": False}
"""Keys, values and attention in float32, so that rows do not depend on how many tokens are read at once."""


@pytest.fixture(scope="module")
def made(gguf):
    """Return a function from a draft's name, if any, and settings to a `CactusLlama`; all are closed at the end."""
    llamas = []

    def make(draft=None, **given):
        files = {} if draft is None else {"draft": f"{gguf(draft)}:cache=float32"}
        llamas.append(CactusLlama(gguf("target"), **files, **SHAPE | given))
        return llamas[-1]

    yield make
    for each in llamas:
        each.close()


@pytest.fixture(scope="module")
def ours(made):
    return made("worded", num_speculative_tokens=4, logits_all=True)


@pytest.fixture(scope="module")
def theirs(gguf):
    llama = Llama(str(gguf("target")), logits_all=True, **SHAPE)
    yield llama
    llama.close()
