"""The weights of the architectures that the lean forward pass knows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor, nn

if TYPE_CHECKING:
    from transformers import PreTrainedModel


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


class LeanWeights(NamedTuple):
    """A decoder's own parameters (no copies), and the numbers that its forward pass needs.

    The numbers are those that its modules hold, which are what they compute with; ``eager`` is whether its attention is
    transformers' eager one.
    """

    embedding: Tensor
    layers: list[LayerWeights]
    norm: Tensor
    head: Tensor
    rotary: nn.Module
    epsilon: float
    scaling: float
    num_heads: int
    num_key_value_heads: int
    head_dim: int
    window: int
    eager: bool


def read_weights(model: PreTrainedModel) -> LeanWeights:
    """Return the weights of a model that has no `lean_obstacle`, as they are now."""
    config, attention = model.config, model.model.layers[0].self_attn
    return LeanWeights(
        model.model.embed_tokens.weight,
        [_read_layer(layer) for layer in model.model.layers],
        model.model.norm.weight,
        model.lm_head.weight,
        model.model.rotary_emb,
        model.model.norm.variance_epsilon,
        attention.scaling,
        config.num_attention_heads,
        config.num_key_value_heads,
        attention.head_dim,
        config.max_position_embeddings,
        config._attn_implementation == "eager",
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
