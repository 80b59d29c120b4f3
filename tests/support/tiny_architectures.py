"""Random models of other architectures than `tiny_llama`, and tokenizers of a few words, all made in memory."""

from __future__ import annotations

import copy
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    Glm4MoeConfig,
    Glm4MoeForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
)

NO_SPECIAL_TOKENS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
SMALL = {
    "vocab_size": 8,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 64,
    **NO_SPECIAL_TOKENS,
}
GEMMA4 = SMALL | {
    "global_head_dim": 8,
    "sliding_window": 8,
    "hidden_size_per_layer_input": 0,
    "vocab_size_per_layer_input": 0,
    "enable_moe_block": False,
    "use_double_wide_mlp": False,
}

LLAMA_SIZES = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,  # not hidden_size / heads
    "max_position_embeddings": 700,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10000.0, "original_max_position_embeddings": 175}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "rope_theta": 10000.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}
LLAMA_CONFIGS = {
    "llama": LlamaConfig(**LLAMA_SIZES),
    "llama, a key head for each query head": LlamaConfig(**LLAMA_SIZES | {"num_key_value_heads": 4}),
    "llama, one key head, tied": LlamaConfig(**LLAMA_SIZES | {"num_key_value_heads": 1}, tie_word_embeddings=True),
    "llama with llama3 frequencies": LlamaConfig(**LLAMA_SIZES, rope_parameters=LLAMA3),
    "llama with yarn frequencies": LlamaConfig(**LLAMA_SIZES, rope_parameters=YARN),
    "qwen2": Qwen2Config(**{k: v for k, v in LLAMA_SIZES.items() if k != "head_dim"}),
    "qwen3": Qwen3Config(**LLAMA_SIZES),
}


def sharpened(model: PreTrainedModel, factor: float = 3.0) -> PreTrainedModel:
    """Scale all matrices, so that rows are far from uniform and ties do not happen; float64 keeps blocks exact."""
    model = model.double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(factor)
    return model


def perturbed(config: PreTrainedConfig, seed: int = 0, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """Return a random model of a configuration whose norms and biases matter."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(copy.deepcopy(config)).to(dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def random_tokens(count: int, seed: int = 0, vocabulary: int = 50) -> list[int]:
    return torch.randint(vocabulary, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


@torch.no_grad()
def plain_logits(model: PreTrainedModel, ids: list[int]) -> torch.Tensor:
    """Return transformers' own logits after each token of a text, ``[tokens, vocabulary]``."""
    return model(torch.tensor([ids])).logits[0]


def tiny_gpt2(seed: int, *, positions: int = 64) -> GPT2LMHeadModel:
    """Learned positions: not one token fits beyond the context window."""
    torch.manual_seed(seed)
    config = GPT2Config(vocab_size=8, n_embd=16, n_layer=2, n_head=2, n_positions=positions, **NO_SPECIAL_TOKENS)
    return sharpened(GPT2LMHeadModel(config), 8.0)


def tiny_mistral(seed: int, *, window: int = 8) -> MistralForCausalLM:
    """All layers slide."""
    torch.manual_seed(seed)
    return sharpened(MistralForCausalLM(MistralConfig(**SMALL, sliding_window=window)), 12.0)


def tiny_gemma3(seed: int) -> Gemma3ForCausalLM:
    """One layer slides, the other sees everything."""
    torch.manual_seed(seed)
    layers = ["sliding_attention", "full_attention"]
    config = Gemma3TextConfig(**SMALL, sliding_window=8, layer_types=layers, query_pre_attn_scalar=8)
    return sharpened(Gemma3ForCausalLM(config), 6.0)


def tiny_qwen2(seed: int) -> Qwen2ForCausalLM:
    torch.manual_seed(seed)
    return sharpened(Qwen2ForCausalLM(Qwen2Config(**SMALL)), 9.0)


def tiny_gemma4_pair(seed: int) -> tuple[PreTrainedModel, PreTrainedModel]:
    """A target and an assistant that reads the target's keys and values."""
    from transformers import Gemma4AssistantConfig, Gemma4AssistantForCausalLM, Gemma4ForCausalLM, Gemma4TextConfig

    torch.manual_seed(seed)
    kinds = ["sliding_attention", "full_attention"]
    target = Gemma4ForCausalLM(
        Gemma4TextConfig(**GEMMA4 | {"num_hidden_layers": 4}, num_kv_shared_layers=0, layer_types=kinds * 2)
    )
    text = Gemma4TextConfig(**GEMMA4, num_kv_shared_layers=2, layer_types=kinds)
    draft = Gemma4AssistantForCausalLM(Gemma4AssistantConfig(text_config=text, backbone_hidden_size=16))
    return sharpened(target, 6.0), sharpened(draft, 12.0)


def tiny_dflash(seed: int) -> PreTrainedModel:
    """A DFlash draft for `tiny_llama` that proposes four tokens at once."""
    from transformers import MuseGlimmerAssistantConfig, MuseGlimmerAssistantModel

    torch.manual_seed(seed)
    wanted = {name: value for name, value in SMALL.items() if name != "vocab_size"}
    config = MuseGlimmerAssistantConfig(
        **wanted, sliding_window=16, block_size=5, mask_token_id=7, target_layer_ids=[0, 1]
    )
    return sharpened(MuseGlimmerAssistantModel(config), 30.0)


def tiny_mtp(folder: Path, layers: int = 2) -> Glm4MoeForCausalLM:
    """A target with multi-token prediction layers, which transformers reads from a checkpoint.

    Those layers follow the model's own in a checkpoint. The class must know their names: see
    ``_keys_to_ignore_on_load_unexpected``, which names those of the published sizes.
    """

    def config(count: int) -> Glm4MoeConfig:
        experts = {"moe_intermediate_size": 16, "n_routed_experts": 2, "num_experts_per_tok": 1, "n_shared_experts": 1}
        groups = {"n_group": 1, "topk_group": 1, "first_k_dense_replace": 1}
        return Glm4MoeConfig(**SMALL | {"num_hidden_layers": count}, **experts, **groups, num_mtp_layers=layers)

    torch.manual_seed(0)
    whole = Glm4MoeForCausalLM(config(2 + layers)).double()
    with torch.no_grad():
        for parameter in whole.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.4)
    whole.save_pretrained(folder)
    weights = load_file(folder / "model.safetensors")
    for layer in range(2, 2 + layers):
        weights[f"model.layers.{layer}.eh_proj.weight"] = torch.randn(16, 32, dtype=torch.float64)
        for norm in ("enorm", "hnorm", "shared_head.norm"):
            weights[f"model.layers.{layer}.{norm}.weight"] = torch.ones(16, dtype=torch.float64)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config(2).save_pretrained(folder)
    return Glm4MoeForCausalLM.from_pretrained(folder, dtype=torch.float64, experts_implementation="eager").eval()


def word_tokenizer(words: str) -> PreTrainedTokenizerFast:
    """A token for each word, numbered in order; ``<...>`` is special, and the first word stands for unknown ones."""
    vocabulary = words.split()
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(vocabulary)}, unk_token=vocabulary[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = [word for word in vocabulary if word.startswith("<")]
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token=vocabulary[0], additional_special_tokens=special
    )


def letter_tokenizer(letters: str) -> PreTrainedTokenizerFast:
    """A token for each letter, numbered in order."""
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)
