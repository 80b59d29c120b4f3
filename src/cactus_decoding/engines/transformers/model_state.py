"""What shows whether a model would read a text as it did before."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_SCALARS = frozenset({bool, int, float, str, type(None)})
_NUM_OF_EVERY_MODULE = len(vars(nn.Module()))
"""What a module holds before its own attributes: dictionaries of parameters, modules and hooks."""


def state_of(model: PreTrainedModel) -> tuple[Any, ...]:
    """Return what shows whether a model would read a text as it did before.

    That is where its tensors are and how often they were written to, its modules' attributes, hooks and classes'
    ``forward``, and the registered attentions. What is written through a tensor's ``data`` is not seen.
    """
    from cactus_decoding.engines.transformers.compatibility import registered_attentions

    tensors = [(id(each), _place(each)) for each in (*model.parameters(), *model.buffers())]
    code: list[Any] = [*_global_forward_hooks, *_global_forward_pre_hooks, *map(id, registered_attentions())]
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
