"""Which architectures of transformers can be rolled back, and that steps then give what they say by themselves."""

from __future__ import annotations

import pytest
import torch
from support.architectures import VOCABULARY, greedy_answer, logits_of_all, tiny_architecture
from support.tiny_architectures import random_tokens
from support.versions import since

from cactus_decoding.core.models.recurrent import RecurrentForward
from cactus_decoding.engines.transformers.cached_model import CachedModel
from cactus_decoding.engines.transformers.forward import GeneralForward

slow = pytest.mark.slow
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # GPT-BigCode's

# One of each kind of positions, of attention, of windows and of experts, for `make test`.
FAMILIES = [
    *("llama", "qwen2", "qwen3", "gpt2", "gpt_neox", "bloom", "gemma3_text", "mistral", "mixtral", "phi3"),
    *("deepseek_v3", "gpt_oss"),
]
WORKS = """
    afmoe apertus arcee aria_text bart bert bert-generation big_bird bigbird_pegasus biogpt bitnet blenderbot
    blenderbot-small camembert codegen cohere cohere2 cohere2_moe ctrl cwm data2vec-text deepseek_v2 diffllama
    doge dots1 electra ernie ernie4_5 ernie4_5_moe exaone4 exaone_moe falcon flex_olmo gemma gemma2 glm glm4
    glm4_moe glm4_moe_lite gpt_bigcode gpt_neo gpt_neox_japanese gptj granite granite_swa granitemoe
    granitemoe_swa granitemoeshared helium hunyuan_v1_dense hunyuan_v1_moe jais2 jetmoe lfm2 llama4_text marian
    mbart megatron-bert mellum mimo_v2_flash minicpm3 minimax_m2 ministral ministral3 modernbert-decoder mpt mvp
    nanochat nemotron olmo olmo2 olmo3 olmoe opt pegasus persimmon phi phimoe plbart qwen2_moe qwen3_moe rembert
    roberta roberta-prelayernorm roformer seed_oss smollm3 solar_open stablelm starcoder2 trocr vaultgemma xglm
    xlm-roberta xlm-roberta-xl youtu
"""
ENCODERS = """
    bert bert-generation big_bird camembert data2vec-text electra ernie megatron-bert rembert roberta
    roberta-prelayernorm roformer xlm-roberta xlm-roberta-xl
"""
RECURRENT = """
    falcon_mamba jamba mamba mamba2 olmo_hybrid recurrent_gemma rwkv xlstm
"""
READ_ON = [
    pytest.param("falcon_h1", marks=since("5.19.0")),
    *(
        pytest.param(name, marks=[slow, since("5.19.0")])
        for name in ["bamba", "granitemoehybrid", "qwen3_next", "qwen3_5_text"]
    ),
]
# Not there yet in transformers 5.0, or without what it takes to be made or rolled back there.
SINCE = """
    cohere2_moe doge exaone4 exaone_moe granite_swa granitemoe_swa jetmoe lfm2 mellum mimo_v2_flash minicpm3
    modernbert-decoder persimmon phi stablelm youtu
"""
MODELS = [
    *FAMILIES,
    *(pytest.param(name, marks=[slow, since("5.19.0")] if name in SINCE.split() else slow) for name in WORKS.split()),
]
OTHERS = {
    "openai-gpt": "OpenAIGPTLMHeadModel .* no cache that could be rolled back",
    "xlm": "XLMWithLMHeadModel .* no cache that could be rolled back",
    "xlnet": "XLNetLMHeadModel .* no cache that could be rolled back",
    "reformer": "ReformerModelWithLMHead .* no cache that could be rolled back",
    "cpmant": "CpmAntForCausalLM cached 42 tokens where 10 were read",
    "minimax": "MiniMax",
}


def assert_steps_give_its_own_greedy_answer(model):
    prompt = random_tokens(12, vocabulary=VOCABULARY)
    expected, cached = greedy_answer(model, prompt, 12), CachedModel(model)
    answer: list[int] = []
    while len(answer) < len(expected):
        # two right proposals and a wrong one
        proposals = expected[len(answer) : len(answer) + 2]
        proposals = [*proposals, (expected[len(answer) + 2 : len(answer) + 3] or [0])[0] ^ 1]
        block = prompt + answer + proposals
        best = cached.append(block[cached.length :], rows=len(proposals) + 1).argmax(-1).tolist()
        kept = next(i for i in range(len(proposals) + 1) if i == len(proposals) or proposals[i] != best[i])
        answer += [*proposals[:kept], best[kept]]
        cached.rollback(len(prompt) + len(answer) - 1)
    assert answer[: len(expected)] == expected
    return cached._forward


def assert_cached_rows_are_those_of_an_uncached_pass(model):
    ids = random_tokens(24, vocabulary=VOCABULARY)
    wanted, cached = logits_of_all(model, ids), CachedModel(model)
    rows = [cached.append(ids[:10], rows=10)]
    cached.append([(token + 1) % VOCABULARY for token in ids[10:16]], rows=1)
    cached.rollback(10)
    if cached.length < 10:  # a sliding window or a state has lost some of what was to be kept: it is read again
        cached.append(ids[cached.length : 10], rows=1)
    rows += [cached.append(ids[10:11], rows=1), cached.append(ids[11:18], rows=7)]
    cached.rollback(15)
    cached.append(ids[cached.length : 18], rows=1)
    rows.append(cached.append(ids[18:], rows=6))
    # float32: rounding; one wrong token in the cache is some orders of magnitude away
    torch.testing.assert_close(torch.cat(rows), wanted, rtol=0, atol=2e-5 * float(wanted.abs().max().clamp(min=1)))


@pytest.mark.parametrize("name", MODELS)
def test_it_can_be_rolled_back_and_steps_give_what_it_says_by_itself(name):
    model = tiny_architecture(name)
    assert_steps_give_its_own_greedy_answer(model)
    assert_cached_rows_are_those_of_an_uncached_pass(model)


@pytest.mark.parametrize("name", READ_ON)
def test_a_recurrent_state_goes_back_to_its_copies(name):
    model = tiny_architecture(name)
    assert isinstance(assert_steps_give_its_own_greedy_answer(model), RecurrentForward)
    assert_cached_rows_are_those_of_an_uncached_pass(model)
    cached = CachedModel(model)
    with pytest.raises(ValueError, match="models with a recurrent state read chains"):
        cached.append([1, 2], 2, positions=[0, 0])
    cached.use_extra_inputs({"output_hidden_states": True})
    with pytest.raises(ValueError, match="keeps a recurrent state, and cannot be asked for output_hidden_states"):
        cached.append([1, 2], 1)


@since("5.19.0")
def test_a_state_that_is_left_as_it_is_shows_in_rows(monkeypatch):
    """The wrong variant of the test above: keys and values are forgotten alone."""
    monkeypatch.setattr(GeneralForward, "copy_state", lambda self: [{} for _ in self._cache.layers])
    with pytest.raises(AssertionError, match="not close"):
        assert_cached_rows_are_those_of_an_uncached_pass(tiny_architecture("falcon_h1"))


@slow
def test_encoders_are_refused_by_name():
    for name in ENCODERS.split():
        model = tiny_architecture(name, is_decoder=False)
        with pytest.raises(ValueError, match=f"{type(model).__name__} is an encoder, .* load it with is_decoder=True"):
            CachedModel(model)


@slow
@since("5.19.0")
def test_recurrent_models_are_refused_by_name():
    for name in RECURRENT.split():
        model = tiny_architecture(name)
        refused = f"{type(model).__name__} keeps a recurrent state, which cannot be rolled back"
        with pytest.raises(ValueError, match=refused):
            CachedModel(model)


@slow
def test_models_with_other_memories_are_refused_by_name():
    for name, refused in OTHERS.items():
        model = tiny_architecture(name)
        with pytest.raises(ValueError, match=refused):
            CachedModel(model).append(random_tokens(10, vocabulary=VOCABULARY), rows=1)
