"""Models that compute a part: layers without some of their parts, and heads without some of the vocabulary."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Kind = Literal["attention", "recurrent", "mlp"]
KINDS: tuple[Kind, ...] = get_args(Kind)
_KIND_OF: dict[str, Kind] = {
    "self_attn": "attention",
    "linear_attn": "recurrent",
    "mamba": "recurrent",
    "mlp": "mlp",
    "feed_forward": "mlp",
    "shared_mlp": "mlp",
    "block_sparse_moe": "mlp",
}
"""What transformers calls the parts of its layers."""
_PRE_NORMS: dict[str, tuple[Kind, ...]] = {
    "input_layernorm": ("attention", "recurrent"),
    "post_attention_layernorm": ("mlp",),
    "pre_ff_layernorm": ("mlp",),
}
"""Which parts a norm comes before, in layers that have two norms; other layers normalise after parts too."""


class Part(NamedTuple):
    layer: int
    kind: Kind


class Nothing(nn.Module):
    """Stands in the place of a part, and adds nothing."""

    def __init__(self, kind: Kind) -> None:
        super().__init__()
        self._kind = kind

    def forward(self, hidden_states: torch.Tensor, *args: Any, **named: Any) -> Any:
        zeros = torch.zeros_like(hidden_states)
        return (zeros, None) if self._kind == "attention" else zeros  # attentions also return their weights


def layers_of(model: Any) -> nn.ModuleList:
    """Return a model's layers; raise `ValueError` for a model without a list of them, such as a GGUF file's."""
    layers = getattr(getattr(model, "base_model", None), "layers", None)
    if not isinstance(layers, nn.ModuleList):
        raise ValueError(f"{type(model).__name__} has no list of layers to leave some out of")
    return layers


def modules_of(layer: nn.Module) -> dict[Kind, list[str]]:
    """Return the names of the modules of each part of a layer; raise `ValueError` for a layer with other modules."""
    found = defaultdict[Kind, list[str]](list)
    for name, module in layer.named_children():
        if name in _KIND_OF:
            found[_KIND_OF[name]].append(name)
        elif not name.endswith("norm") and not isinstance(module, (nn.Dropout, nn.Identity)):
            known = ", ".join(_KIND_OF)
            raise ValueError(
                f"{type(layer).__name__} has a {name!r}: parts can be skipped of layers that hold norms and some of "
                f"{known}"
            )
    return dict(found)


def parts_of(model: Any) -> list[Part]:
    return [Part(i, kind) for i, layer in enumerate(layers_of(model)) for kind in KINDS if kind in modules_of(layer)]


def first_layers(target: PreTrainedModel, count: int) -> PreTrainedModel:
    """Return a model of the target's first layers, its last norm and its head; all tensors are the target's own."""
    shared = {id(tensor): tensor for tensor in (*target.parameters(), *target.buffers())}
    draft: PreTrainedModel = copy.deepcopy(target, shared)
    draft.config.num_hidden_layers = count
    types = getattr(draft.config, "layer_types", None)
    if types and len(types) > count:  # some configurations work them out from the number of layers
        draft.config.layer_types = types[:count]
    draft.base_model.layers = layers_of(draft)[:count]
    return draft


def without_parts(target: PreTrainedModel, skipped: Collection[Part]) -> PreTrainedModel:
    parts = parts_of(target)
    if missing := sorted(set(skipped) - set(parts)):
        raise ValueError(f"layer {missing[0].layer} of {type(target).__name__} has no {missing[0].kind} to skip")
    if not skipped:
        raise ValueError("a draft must skip something of its target, but keeps everything")
    kept, types = [part for part in parts if part not in skipped], _types_of(target)
    attended = {types[part.layer] for part in kept if part.kind == "attention"}
    if attended != {types[part.layer] for part in parts if part.kind == "attention"}:
        raise ValueError("a draft must keep an attention of each kind of layers, but skips all of one kind")
    draft = first_layers(target, 1 + max(part.layer for part in kept))
    for i, layer in enumerate(layers_of(draft)):
        _skip(layer, {part.kind for part in skipped if part.layer == i})
    _number_kept(draft)
    return draft


@contextmanager
def muted(layer: nn.Module, kind: Kind) -> Iterator[None]:
    """Let a layer add nothing in the place of a part for a while."""
    own = {name: getattr(layer, name) for name in modules_of(layer)[kind]}
    try:
        for name in own:
            setattr(layer, name, Nothing(kind))
        yield
    finally:
        for name, module in own.items():
            setattr(layer, name, module)


def _skip(layer: nn.Module, kinds: set[Kind]) -> None:
    """Put nothing in the place of parts, and of norms that nothing reads."""
    modules = modules_of(layer)
    norms = [name for name, _ in layer.named_children() if name.endswith("norm")]
    if len(norms) == 2 and all(name in _PRE_NORMS for name in norms):
        for name in norms:
            if kinds.issuperset(modules.keys() & set(_PRE_NORMS[name])):
                setattr(layer, name, nn.Identity())
    for kind in kinds:
        for name in modules[kind]:
            setattr(layer, name, Nothing(kind))


def _types_of(model: PreTrainedModel) -> list[str]:
    return getattr(model.config, "layer_types", None) or [""] * len(layers_of(model))


def _number_kept(model: PreTrainedModel) -> None:
    """Let attentions and states use the first layers of the cache: it counts its tokens by the first of each type."""
    types = _types_of(model)
    free = {(kind, each): [i for i, own in enumerate(types) if own == each] for kind in KINDS for each in types}
    for layer, own in zip(layers_of(model), types, strict=True):
        for kind, names in modules_of(layer).items():
            for module in (getattr(layer, name) for name in names):
                if hasattr(module, "layer_idx"):
                    module.layer_idx = free[kind, own].pop(0)


if TYPE_CHECKING:
    from transformers import PreTrainedModel

CONFIGURED = "draft_vocabulary"
"""The name under which a draft's configuration lists the tokens that it proposes, in ascending order."""


class PartialHead(nn.Linear):
    """A layer with all of its weights, of which some rows are computed; the logits of the others are minus infinity."""

    token_ids: Tensor
    _copied: tuple[int, int, Tensor] | None = None
    _widens = True

    def forward(self, hidden: Tensor) -> Tensor:
        """Return logits, ``[..., vocabulary]``; of the part alone inside `alone`."""
        logits = linear(hidden, self._rows(), None if self.bias is None else self.bias[self.token_ids])
        if not self._widens:
            return logits
        wide = logits.new_full((*logits.shape[:-1], self.out_features), -torch.inf)
        return wide.index_copy_(-1, self.token_ids, logits)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Compute the part alone, ``[..., part]``: a training step has no memory for rows of zeros."""
        self._widens = False
        try:
            yield
        finally:
            self._widens = True

    def places(self, token_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return where tokens are in the part, 0 for those that it lacks, and which it has."""
        places = torch.searchsorted(self.token_ids, token_ids).clamp(max=len(self.token_ids) - 1)
        kept = self.token_ids[places] == token_ids
        return places.where(kept, 0), kept

    def _rows(self) -> Tensor:
        """Return the weights' rows; copied once where no gradient flows, until the weights change."""
        if torch.is_grad_enabled():
            self._copied = None
            return self.weight[self.token_ids]
        state = self.weight.data_ptr(), self.weight._version
        if self._copied is None or self._copied[:2] != state:
            self._copied = (*state, self.weight[self.token_ids])
        return self._copied[2]


def propose_from(model: PreTrainedModel, token_ids: Sequence[int]) -> None:
    r"""Have a model propose from a part of its vocabulary alone, and its configuration say so.

    .. math:: p'(x) = p(x) / \sum_{i \in part} p(i) \text{ in the part}, \quad 0 \text{ elsewhere}
    """
    head = model.get_output_embeddings()
    if type(head) not in (nn.Linear, PartialHead):
        raise ValueError(f"{type(model).__name__} has no plain output layer, of which a part could be computed")
    assert isinstance(head, nn.Linear)
    ids = sorted(set(token_ids))
    if not ids or ids[0] < 0 or ids[-1] >= head.out_features:
        raise ValueError(
            f"{CONFIGURED} must list tokens from 0 to {head.out_features - 1}, but lists {ids[-1] if ids else 'none'}"
        )
    head.__class__ = PartialHead
    head.register_buffer("token_ids", torch.tensor(ids, device=head.weight.device), persistent=False)
    setattr(model.config, CONFIGURED, ids)
