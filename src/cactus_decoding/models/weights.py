"""The weights of the architectures that the lean forward pass knows, found by exact type."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks
from transformers import PreTrainedModel
from transformers.activations import SiLUActivation
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama import modeling_llama as llama
from transformers.models.qwen2 import modeling_qwen2 as qwen2
from transformers.models.qwen3 import modeling_qwen3 as qwen3

_KNOWN = {
    getattr(module, f"{prefix}ForCausalLM"): {
        kind: kind.forward
        for name in ("ForCausalLM", "Model", "DecoderLayer", "Attention", "MLP", "RMSNorm", "RotaryEmbedding")
        for kind in (getattr(module, prefix + name),)
        if kind.forward.__module__ == module.__name__  # not patched before this is imported
    }
    for module, prefix in ((llama, "Llama"), (qwen2, "Qwen2"), (qwen3, "Qwen3"))
}
_SHARED = {kind: kind.forward for kind in (nn.ModuleList, nn.Embedding, nn.Linear, nn.SiLU, SiLUActivation)}
_ATTENTION = {"sdpa": sdpa_attention_forward, "eager": None}  # each model has an eager one of its own
# These frequencies do not depend on how long the sequence is.
_STATIC_ROPE = frozenset({"default", "linear", "llama3", "yarn"})


class LayerWeights(NamedTuple):
    """One decoder layer. Matrices are ``[out, in]``; biases and the norms of heads are None where there are none."""

    attention_norm: Tensor
    query: Tensor
    key: Tensor
    value: Tensor
    query_bias: Tensor | None
    key_bias: Tensor | None
    value_bias: Tensor | None
    query_norm: Tensor | None
    key_norm: Tensor | None
    output: Tensor
    mlp_norm: Tensor
    gate: Tensor
    up: Tensor
    down: Tensor


class Weights(NamedTuple):
    """A decoder's own parameters (no copies), and the numbers that its forward pass needs."""

    embedding: Tensor
    layers: list[LayerWeights]
    norm: Tensor
    head: Tensor
    rotary: nn.Module
    epsilon: float
    num_heads: int
    num_key_value_heads: int
    head_dim: int
    window: int


def read_weights(model: PreTrainedModel) -> Weights | None:
    """Return the weights of a model whose forward pass `LeanForward` reproduces, or None for any other.

    Only exact types count, so whatever replaces a module (quantisation, adapters, a subclass) makes the model one of
    the others. So does what replaces a ``forward``, of an instance or of a class, or transformers' attention, and what
    hooks into a module or into all of them; and so do sliding windows, other activations, and rotary frequencies that
    change with the length of the sequence.
    """
    if not (_has_known_modules(model) and _has_known_settings(model)):
        return None
    config = model.config
    return Weights(
        model.model.embed_tokens.weight,
        [_read_layer(layer) for layer in model.model.layers],
        model.model.norm.weight,
        model.lm_head.weight,
        model.model.rotary_emb,
        config.rms_norm_eps,
        config.num_attention_heads,
        config.num_key_value_heads,
        model.model.layers[0].self_attn.head_dim,
        config.max_position_embeddings,
    )


def _read_layer(layer: Any) -> LayerWeights:
    attention, mlp = layer.self_attn, layer.mlp
    query, key, value = attention.q_proj, attention.k_proj, attention.v_proj
    return LayerWeights(
        layer.input_layernorm.weight,
        query.weight,
        key.weight,
        value.weight,
        query.bias,
        key.bias,
        value.bias,
        attention.q_norm.weight if hasattr(attention, "q_norm") else None,
        attention.k_norm.weight if hasattr(attention, "k_norm") else None,
        attention.o_proj.weight,
        layer.post_attention_layernorm.weight,
        mlp.gate_proj.weight,
        mlp.up_proj.weight,
        mlp.down_proj.weight,
    )


def _has_known_modules(model: PreTrainedModel) -> bool:
    if type(model) not in _KNOWN or _global_forward_hooks or _global_forward_pre_hooks:
        return False
    forwards = _KNOWN[type(model)] | _SHARED
    return all(
        type(module).forward is forwards.get(type(module))
        and "forward" not in vars(module)  # what wraps a module in place sets it on the instance
        and not (module._forward_hooks or module._forward_pre_hooks)
        for module in model.modules()
    )


def _has_known_settings(model: PreTrainedModel) -> bool:
    config, layers = model.config, model.model.layers
    unbiased = [model.lm_head, *(p for layer in layers for p in (layer.self_attn.o_proj, *layer.mlp.children()))]
    parameters = list(model.parameters())
    return (
        config.hidden_act in ("silu", "swish")
        and config._attn_implementation in _ATTENTION
        and ALL_ATTENTION_FUNCTIONS.get(config._attn_implementation) is _ATTENTION[config._attn_implementation]
        and config.rope_parameters["rope_type"] in _STATIC_ROPE
        and config.num_hidden_layers == len(layers) > 0
        and all(kind == "full_attention" for kind in getattr(config, "layer_types", ()))
        and not (model.training and config.attention_dropout)
        and all(getattr(module, "bias", None) is None for module in unbiased)
        and len({(p.dtype, p.device) for p in parameters}) == 1
        and parameters[0].is_floating_point()
    )
