"""Tiny random mixtures of experts: of transformers, as GGUF files, and how many experts their passes use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from cactus_conform.gguf_files import add_shape, tensor_name, tensor_values
from gguf import GGUFWriter
from transformers import MixtralConfig, MixtralForCausalLM

EXPERTS, PER_TOKEN, LAYERS = 16, 2, 3


def tiny_mixture(vocabulary: int, seed: int = 0) -> MixtralForCausalLM:
    """Return a mixture whose tokens ask for different experts."""
    torch.manual_seed(seed)
    config = MixtralConfig(
        vocab_size=vocabulary, hidden_size=32, intermediate_size=16, num_hidden_layers=LAYERS, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, max_position_embeddings=256, num_local_experts=EXPERTS,
        num_experts_per_tok=PER_TOKEN, bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    model = MixtralForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(8.0)
    return model


@contextmanager
def experts_used(model: MixtralForCausalLM) -> Iterator[list[int]]:
    """Yield a list that grows by the number of different experts of each pass, over all layers."""
    used, layers = list[int](), list[int]()

    def count(router: torch.nn.Module, given: object, output: tuple[torch.Tensor, ...]) -> None:
        layers.append(len(output[2].unique()))
        if len(layers) == LAYERS:
            used.append(sum(layers))
            layers.clear()

    hooks = [layer.mlp.gate.register_forward_hook(count) for layer in model.model.layers]
    try:
        yield used
    finally:
        for hook in hooks:
            hook.remove()


@torch.inference_mode()
def used_by(model: MixtralForCausalLM, text: Sequence[int], start: int, width: int) -> int:
    """Return how many experts tokens of a text ask for, over all layers; the text before them is read first."""
    from transformers import DynamicCache

    cache = DynamicCache(config=model.config)
    for block in (text[:start], text[start : start + width]):
        with experts_used(model) as used:
            output = model(torch.tensor([list(block)]), use_cache=True, **_given(model, cache))
    assert output.logits.shape[1] == width
    return used[-1]


def _given(model: MixtralForCausalLM, cache: object) -> dict[str, object]:
    from cactus_decoding.engines.transformers.compatibility import cache_argument

    return {cache_argument(model) or "past_key_values": cache}


def write_mixture(model: MixtralForCausalLM, path: Path) -> Path:
    """Write a mixture as llama.cpp reads it, with bare numbers as tokens."""
    config = model.config.to_dict()
    writer = GGUFWriter(path, "llama")
    add_shape(writer, "mixture", config)
    writer.add_expert_count(EXPERTS)
    writer.add_expert_used_count(PER_TOKEN)
    writer.add_tokenizer_model("no_vocab")
    for name, tensor in model.state_dict().items():
        values = tensor.float().numpy()
        layer = name.split(".")[2] if ".layers." in name else ""
        if name.endswith("mlp.gate.weight"):
            writer.add_tensor(f"blk.{layer}.ffn_gate_inp.weight", values)
        elif name.endswith("experts.gate_up_proj"):
            for part, half in zip(("gate", "up"), (values[:, :16], values[:, 16:]), strict=True):
                writer.add_tensor(f"blk.{layer}.ffn_{part}_exps.weight", half.copy())
        elif name.endswith("experts.down_proj"):
            writer.add_tensor(f"blk.{layer}.ffn_down_exps.weight", values)
        else:
            writer.add_tensor(tensor_name(name, config), tensor_values(name, values, config))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
