"""Which models the lean forward pass reproduces, what keeps it from others, and whether one changed since."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from operator import is_
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks
from transformers import PreTrainedModel, masking_utils
from transformers.activations import SiLUActivation
from transformers.integrations import sdpa_attention
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama import modeling_llama as llama
from transformers.models.qwen2 import modeling_qwen2 as qwen2
from transformers.models.qwen3 import modeling_qwen3 as qwen3


def _classes(module: ModuleType, prefix: str) -> Iterator[type[nn.Module]]:
    for name in ("ForCausalLM", "Model", "DecoderLayer", "Attention", "MLP", "RMSNorm", "RotaryEmbedding"):
        yield getattr(module, prefix + name)


_ARCHITECTURES = {
    getattr(module, f"{prefix}ForCausalLM"): (module, tuple(_classes(module, prefix)))
    for module, prefix in ((llama, "Llama"), (qwen2, "Qwen2"), (qwen3, "Qwen3"))
}
_SHARED = {kind: kind.forward for kind in (nn.ModuleList, nn.Embedding, nn.Linear, nn.SiLU, SiLUActivation)}
_FORWARDS = {
    model: {
        kind: kind.forward
        for kind in kinds
        if kind.forward.__module__ == module.__name__  # not patched before this is imported
    }
    | _SHARED
    for model, (module, kinds) in _ARCHITECTURES.items()
}
_ATTENTION = {"sdpa": sdpa_attention_forward, "eager": None}  # each model has an eager one of its own
# These frequencies do not depend on how long the sequence is.
_STATIC_ROPE = frozenset({"default", "linear", "llama3", "yarn"})
_SCALARS = frozenset({bool, int, float, str, type(None)})
_NUM_OF_EVERY_MODULE = len(vars(nn.Module()))
"""What a module holds before its own attributes: dictionaries of parameters, modules and hooks."""


def lean_obstacle(model: PreTrainedModel) -> str | None:
    """Say why the lean forward pass cannot be that of a model; None where nothing is known to be in its way.

    Only exact types count, so whatever replaces a module (quantisation, adapters, a subclass) is in its way. So is what
    replaces a ``forward``, of an instance or of a class, or transformers' attention, and what hooks into a module or
    into all of them; and so are sliding windows, other activations, and rotary frequencies that change with the length
    of the sequence. What no list can name shows where both passes are compared: see `agreement`.
    """
    if type(model) not in _ARCHITECTURES:
        known = ", ".join(kind.__name__ for kind in _ARCHITECTURES)
        return f"its class is {type(model).__name__}, none of {known}"
    modules = list(model.modules())
    return _replaced(model, modules) or _other_settings(model) or _other_parameters(model, modules)


def _replaced(model: PreTrainedModel, modules: list[nn.Module]) -> str | None:
    """Name the first module that is not what its architecture has there, or what is replaced for all."""
    if _global_forward_hooks or _global_forward_pre_hooks:
        return "hooks are registered for all modules"
    if torch.is_autocast_enabled(model.device.type):
        return "autocast is on"
    forwards = _FORWARDS[type(model)]
    for module in modules:
        own, kind = vars(module), type(module)
        if (
            kind.forward is not forwards.get(kind)
            or "forward" in own  # what wraps a module in place sets it on the instance
            or own["_forward_hooks"]
            or own["_forward_pre_hooks"]
            or own.get("_compiled_call_impl") is not None
        ):
            return f"{_path(model, module)} ({kind.__name__}) is replaced, patched, hooked or compiled"
    attention = model.config._attn_implementation
    if attention not in _ATTENTION or ALL_ATTENTION_FUNCTIONS.get(attention) is not _ATTENTION[attention]:
        return f"its attention, {attention}, is not transformers' own sdpa or eager"
    return None


def _path(model: PreTrainedModel, wanted: nn.Module) -> str:
    return next((path or "the model" for path, module in model.named_modules() if module is wanted), "a module")


def _other_settings(model: PreTrainedModel) -> str | None:
    """Name the first number or switch, in the configuration or in a module, that the lean pass has no place for."""
    config, decoder = model.config, model.model
    if config.num_hidden_layers != len(decoder.layers) or not decoder.layers:
        return f"it has {len(decoder.layers)} layers where its configuration says {config.num_hidden_layers}"
    if any(kind != "full_attention" for kind in getattr(config, "layer_types", None) or ()):
        return "some of its layers attend to a sliding window"
    if config.hidden_act not in ("silu", "swish"):
        return f"its activation is {config.hidden_act}"
    rope = {config.rope_parameters["rope_type"], decoder.rotary_emb.rope_type}
    if not rope <= _STATIC_ROPE:
        return f"its rotary frequencies change with the length of the text ({', '.join(sorted(rope))})"
    attentions = [layer.self_attn for layer in decoder.layers]
    first = attentions[0]
    for attention in attentions:
        if attention.config is not config or not attention.is_causal or getattr(attention, "sliding_window", None):
            return "some of its layers have a configuration of their own, a sliding window, or is_causal=False"
        if attention.head_dim != first.head_dim or attention.scaling != first.scaling:
            return "its layers have heads of several sizes or scalings"
        if attention.num_key_value_groups * config.num_key_value_heads != config.num_attention_heads:
            return "its groups of query heads are not those of its configuration"
        if attention.training and attention.attention_dropout:
            return "it is in training mode, and its attention drops out"
    norms = [
        norm
        for layer in decoder.layers
        for norm in (layer.input_layernorm, layer.post_attention_layernorm, *_head_norms(layer.self_attn))
    ]
    if any(norm.variance_epsilon != decoder.norm.variance_epsilon for norm in norms):
        return "its norms have several epsilons"
    if decoder.embed_tokens.max_norm is not None:
        return "its embedding has a max_norm"
    return None


def _head_norms(attention: Any) -> tuple[Any, ...]:
    return (attention.q_norm, attention.k_norm) if "q_norm" in attention._modules else ()


def _other_parameters(model: PreTrainedModel, modules: list[nn.Module]) -> str | None:
    unbiased = [model.lm_head]
    for layer in model.model.layers:
        unbiased += (layer.self_attn.o_proj, layer.mlp.gate_proj, layer.mlp.up_proj, layer.mlp.down_proj)
    if any(linear.bias is not None for linear in unbiased):
        return "it has biases in other places than queries, keys and values"
    # not `parameters()`, which looks for those that occur twice
    held = (parameter for module in modules for parameter in module._parameters.values())
    kinds = {(type(p), p.dtype, p.device) for p in held if p is not None}
    if len(kinds) > 1:
        return "its parameters have several types, dtypes or devices"
    kind, dtype, _ = next(iter(kinds))
    if kind is not nn.Parameter or not dtype.is_floating_point:
        return f"its parameters are of type {kind.__name__}, {dtype}"
    return None


class Fingerprint(NamedTuple):
    """What of a model and of the code that reads it can be told apart by looking: see `fingerprint`."""

    model: tuple[Any, ...]
    code: tuple[Any, ...]

    def same(self, other: Fingerprint) -> bool:
        """Say whether nothing was replaced between the two.

        Example:
            >>> one, other = Fingerprint((0.5,), (nn.Linear.forward,)), Fingerprint((0.5,), (nn.Embedding.forward,))
            >>> one.same(one), one.same(other)
            (True, False)
        """
        same_code = len(self.code) == len(other.code) and all(map(is_, self.code, other.code))
        return same_code and self.model == other.model


def state_of(model: PreTrainedModel) -> tuple[Any, ...]:
    """Return what shows whether a model, of any kind, would read a text as it did before.

    That is where its tensors are and how often they were written to, its modules' attributes, hooks and classes'
    ``forward``, and the registered attentions. What is written through a tensor's ``data`` is not seen.
    """
    tensors = [(id(each), _place(each)) for each in (*model.parameters(), *model.buffers())]
    code: list[Any] = [*_global_forward_hooks, *_global_forward_pre_hooks, *map(id, ALL_ATTENTION_FUNCTIONS.values())]
    for module in model.modules():
        code += (module.training, id(type(module).forward), *module._forward_hooks, *module._forward_pre_hooks)
    autocast = torch.is_autocast_enabled(model.device.type)
    return (*tensors, *_attributes(model), *code, autocast, torch.get_float32_matmul_precision())


def _place(tensor: torch.Tensor) -> tuple[int, ...]:
    plain = type(tensor) in (nn.Parameter, torch.Tensor)  # others may have no memory of their own
    return (tensor.data_ptr() if plain else 0, 0 if tensor.is_inference() else tensor._version)


def _attributes(model: PreTrainedModel) -> list[Any]:
    """Return the attributes of a model's configuration and modules.

    Numbers are taken by value; other objects by where they are, which keeps none of them alive.
    """
    parts: list[Any] = []
    for holder in (model.config, *model.modules()):
        parts.append(type(holder))
        own = islice(vars(holder).values(), _NUM_OF_EVERY_MODULE if isinstance(holder, nn.Module) else 0, None)
        parts += [value if type(value) in _SCALARS else id(value) for value in own]
    return parts


def fingerprint(model: PreTrainedModel) -> Fingerprint:
    """Return the attributes of a known model's modules, and all functions of the classes and files that compute it.

    Weights are not among them: who reads a model reads them anew. An object counts as itself, so that one that changes
    inside, such as a closure's variable, looks the same.
    """
    parts = [model.dtype, model.device, *_attributes(model)]
    file, kinds = _ARCHITECTURES[type(model)]
    code: list[Any] = []
    for space in (file, functional, sdpa_attention, masking_utils, nn.Module, *kinds, *_SHARED):
        code += vars(space).values()
    for registry in (ALL_ATTENTION_FUNCTIONS, ALL_MASK_ATTENTION_FUNCTIONS):
        code += registry.values()
    return Fingerprint(tuple(parts), tuple(code))
