"""Beyond the context window: the response goes on where that of `generate` does, and says so where it cannot."""

import pytest
import torch
from support.tables import all_of
from support.tiny_architectures import NO_SPECIAL_TOKENS, sharpened, tiny_gpt2
from support.tiny_models import tiny_llama
from support.versions import at_least
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    CodeGenConfig,
    FalconConfig,
    Gemma3TextConfig,
    GPTJConfig,
    GPTNeoXConfig,
    LlamaConfig,
    MptConfig,
    OPTConfig,
    Phi3Config,
)

from cactus_decoding import Metrics, speculative_generate

WINDOW, PLACE, LENGTH = 24, 16, 60
PROMPT = torch.tensor([[2, 3, 4, 5, 6, 7]])
ALIBI = {"vocab_size": 8, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, **NO_SPECIAL_TOKENS}
SIZES = ALIBI | {"intermediate_size": 24, "max_position_embeddings": WINDOW}
SHORT = {"vocab_size": 8, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": WINDOW, **NO_SPECIAL_TOKENS}
SLIDES = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8, "head_dim": 8}
SLIDES |= {"num_key_value_heads": 1}
LONG = {"short_factor": [1.0] * 4, "long_factor": [3.0] * 4, "original_max_position_embeddings": PLACE}


def rotations(kind: str, **more) -> dict:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, "factor": 2.0, **more}}


GOES_ON = {
    "plain rotations": LlamaConfig(**SIZES),
    "dynamic rotations": LlamaConfig(**SIZES, **rotations("dynamic")),
    "yarn": LlamaConfig(**SIZES, **rotations("yarn", original_max_position_embeddings=12)),
    "two sets of rotations": LlamaConfig(**SIZES, **rotations("longrope", **LONG)),
    "rotations of a part": GPTNeoXConfig(**SIZES),
    "a window that slides": Gemma3TextConfig(**SIZES, **SLIDES),
    "linear biases": BloomConfig(vocab_size=8, hidden_size=16, n_layer=2, n_head=2, **NO_SPECIAL_TOKENS),
    "linear biases by choice": FalconConfig(**ALIBI, max_position_embeddings=WINDOW, alibi=True),
    "rotations by choice": FalconConfig(**ALIBI, max_position_embeddings=WINDOW, alibi=False),
}
ENDS = {
    "GPT-J": GPTJConfig(**SHORT, rotary_dim=4),
    "CodeGen": CodeGenConfig(**SHORT, rotary_dim=4),
    "OPT": OPTConfig(**SIZES | {"pad_token_id": 1}, ffn_dim=24, word_embed_proj_dim=16),
    "MPT": MptConfig(
        vocab_size=8, d_model=16, n_layers=2, n_heads=2, max_seq_len=WINDOW, use_cache=True, **NO_SPECIAL_TOKENS
    ),
}


def model_of(config, seed: int = 0):
    torch.manual_seed(seed)
    return sharpened(AutoModelForCausalLM.from_config(config))


def speculate(model, prompt=PROMPT, **given):
    given = {"do_sample": False, "max_length": LENGTH, "assistant_model": model} | given
    return model.generate(prompt, custom_generate=speculative_generate, **given)


@pytest.mark.parametrize("kind", GOES_ON)
@all_of("prompt_length, number", [(6, 6), (6, 1), (PLACE, 3), (WINDOW + 4, 6)])
def test_the_response_goes_on_as_in_generate(kind, prompt_length, number):
    model = model_of(GOES_ON[kind])
    prompt = torch.randint(8, (1, prompt_length), generator=torch.Generator().manual_seed(0))
    plain = model.generate(prompt, do_sample=False, max_length=LENGTH)
    assert plain.shape[1] == LENGTH
    assert torch.equal(speculate(model, prompt, num_speculative_tokens=number), plain)


@all_of("asked", [{"verification": "block"}, {"tree": "static=2.2"}, {"num_speculative_tokens": "auto"}])
def test_where_rotations_change_a_draft_may_do_what_it_may_do_elsewhere(asked):
    model = model_of(GOES_ON["dynamic rotations"])
    plain = model.generate(PROMPT, do_sample=False, max_length=LENGTH)
    assert torch.equal(speculate(model, rule="clamped:width=1", **asked), plain)


def test_dynamic_rotations_read_one_token_at_a_time_beyond_the_window():
    model, metrics = model_of(GOES_ON["dynamic rotations"]), Metrics()
    speculate(model, metrics=metrics)
    assert metrics.generated == LENGTH - 6
    assert metrics.steps > LENGTH - WINDOW
    assert 0 < metrics.drafted < WINDOW


@pytest.mark.parametrize("kind", [kind for kind in ENDS if kind != "MPT" or at_least("5.19.0")])  # fails in float64
def test_a_table_of_positions_ends_the_response_and_says_so(kind):
    model = model_of(ENDS[kind])
    with pytest.raises((IndexError, RuntimeError)):
        model.generate(PROMPT, do_sample=False, max_length=WINDOW + 2)
    plain = model.generate(PROMPT, do_sample=False, max_length=WINDOW)
    with pytest.warns(UserWarning, match=f"the response ends at the target's {WINDOW} positions, which is all that"):
        assert torch.equal(speculate(model), plain)
    assert torch.equal(speculate(model, max_length=WINDOW), plain), "to the end exactly is no surprise"


def test_where_a_model_would_read_everything_again_the_response_ends():
    config = Phi3Config(
        **SIZES | {"pad_token_id": 0}, original_max_position_embeddings=PLACE, **rotations("longrope", **LONG)
    )
    model = model_of(config)
    plain = model.generate(PROMPT, do_sample=False, max_length=LENGTH)
    with pytest.warns(UserWarning, match=f"ends at the target's {PLACE} positions, where its rotations change"):
        assert torch.equal(speculate(model), plain[:, :PLACE])
    prompt = plain[:, : PLACE + 3]
    mask = torch.ones_like(prompt)
    plain = model.generate(prompt, attention_mask=mask, do_sample=False, max_length=LENGTH)
    assert torch.equal(speculate(model, prompt, attention_mask=mask), plain)


def test_a_draft_goes_on_beyond_its_window_too():
    target, draft, metrics = tiny_llama(0), tiny_llama(0, positions=16), Metrics()
    speculate(target, assistant_model=draft, metrics=metrics)
    assert metrics.accepted == metrics.drafted > 40


def test_a_draft_proposes_nothing_beyond_its_table_of_positions():
    target, draft = tiny_gpt2(0), tiny_gpt2(0, positions=16)
    same = target.state_dict()
    draft.load_state_dict(same | {"transformer.wpe.weight": same["transformer.wpe.weight"][:16]})
    plain, metrics = target.generate(PROMPT, do_sample=False, max_length=LENGTH), Metrics()
    assert torch.equal(speculate(target, assistant_model=draft, metrics=metrics), plain)
    assert metrics.drafted == metrics.accepted < 16
