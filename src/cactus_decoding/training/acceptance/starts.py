"""Where a draft starts: from a draft, from a shape, or from the target's first layers."""

from __future__ import annotations

import copy
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from cactus_decoding import zoo
from cactus_decoding.drafting.early_exit import EarlyExit
from cactus_decoding.models.loading import load_model, only_cached
from cactus_decoding.training.acceptance.settings import TrainingSettings


def draft_name(settings: TrainingSettings) -> str | Path | None:
    """Return the folder or the hub's name of the draft to start from; None where there is none."""
    return settings.draft and (zoo.draft_path(settings.draft) or settings.draft)


def start(settings: TrainingSettings, target: PreTrainedModel) -> PreTrainedModel:
    """Return the draft that is trained, its weights in float32.

    Raises:
        ValueError: where a draft cannot be loaded, or the target's architecture has no such layers or heads.
    """
    torch.manual_seed(settings.seed)
    name = draft_name(settings)
    if name is not None:
        draft = load_model("draft", name, torch.float32, target.device, local=only_cached("draft", name))
    elif settings.first_layers is not None:
        draft = copy.deepcopy(EarlyExit(settings.first_layers).of(target))
    else:
        draft = of_shape(target, settings.layers or 0, settings.width or 0)
    draft = draft.float().to(target.device)
    for parameter in draft.parameters():
        parameter.data = parameter.data.contiguous()  # small matrices may have been laid out by columns
        parameter.requires_grad_(True)
    return draft


def of_shape(target: PreTrainedModel, layers: int, width: int) -> PreTrainedModel:
    """Return an untrained model of the target's architecture and vocabulary, with other sizes.

    Attention heads stay as wide as the target's and as many to a key; the feed-forward part keeps its proportion.

    Raises:
        ValueError: where the width is no multiple of a head's, or the architecture's configuration is another kind.
    """
    config = copy.deepcopy(target.config)
    try:
        heads, hidden = config.num_attention_heads, config.hidden_size
        inner = config.intermediate_size
    except AttributeError as error:
        raise ValueError(f"no draft of another shape can be made of {type(target).__name__}: {error}") from None
    head = getattr(config, "head_dim", None) or hidden // heads
    group = heads // (getattr(config, "num_key_value_heads", None) or heads)
    if width % head:
        raise ValueError(f"width must be a multiple of {head}, the width of the target's heads, but is {width}")
    config.num_hidden_layers, config.hidden_size = layers, width
    config.intermediate_size = max(1, round(inner * width / hidden))
    config.num_attention_heads = width // head
    if hasattr(config, "num_key_value_heads"):
        config.num_key_value_heads = max(1, width // head // group)
        if config.num_attention_heads % config.num_key_value_heads:
            config.num_key_value_heads = config.num_attention_heads
    if getattr(config, "layer_types", None):
        config.layer_types = (config.layer_types * layers)[:layers]
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32)
