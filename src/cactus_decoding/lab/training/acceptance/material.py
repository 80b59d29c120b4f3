"""What a draft is trained with, the target and sequences of tokens; where it starts, and what can be trained."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cactus_decoding import zoo
from cactus_decoding.core.drafting.model import ModelDrafter
from cactus_decoding.core.models.loading import only_cached
from cactus_decoding.core.pair import Pair
from cactus_decoding.engines.transformers.early_exit import EarlyExit
from cactus_decoding.engines.transformers.loader import load_model
from cactus_decoding.lab.training.acceptance.data import DataSplit, Document, as_sequence, digest_of, split
from cactus_decoding.lab.training.acceptance.sampling import answer, read_answers
from cactus_decoding.lab.training.acceptance.settings import ProgressReport, TrainingSettings

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True, eq=False)
class Material:
    """What a draft is trained with; ``answers`` is the target's file of them, None where it was asked nothing."""

    target: PreTrainedModel
    target_name: str | Path
    tokenizer: PreTrainedTokenizerBase
    stop_token_ids: Sequence[int]
    documents: Sequence[Document]
    parts: DataSplit
    answers: Path | None
    max_length: int

    @property
    def digest(self) -> str:
        return digest_of(self.documents)


def material_of(
    settings: TrainingSettings,
    documents: Sequence[Document],
    target: PreTrainedModel,
    target_name: str | Path,
    tokenizer: PreTrainedTokenizerBase,
    longest: int,
    file: Path,
    report: ProgressReport,
    *,
    answering: bool,
    wait: Callable[[], None],
) -> Material:
    stops = stop_token_ids(target, tokenizer)
    prompts = []
    for number, each in enumerate(documents, 1):
        if each.completion is None:
            prompts.append(list(tokenizer(each.prompt).input_ids))
            if (length := len(prompts[-1])) >= longest:
                raise ValueError(
                    f"the prompt of document {number} has {length} tokens, but a sequence at most {longest}: raise "
                    "max_length"
                )
    if prompts and answering:
        answer(
            target,
            prompts,
            file,
            stop_token_ids=stops,
            max_new_tokens=settings.max_new_tokens,
            longest=longest,
            seed=settings.seed,
            report=lambda done: report("Answering", done, len(prompts), ""),
        )
    wait()
    answered = iter(read_answers(file))
    sequences = [
        as_sequence(tokenizer, each, next(answered) if each.completion is None else None, stops[:1], longest)
        for each in documents
    ]
    parts = split(sequences, settings.held_out, settings.seed)
    return Material(target, target_name, tokenizer, stops, documents, parts, file if prompts else None, longest)


def longest_of(settings: TrainingSettings, *models: PreTrainedModel) -> int:
    windows = (getattr(each.config.get_text_config(decoder=True), "max_position_embeddings", None) for each in models)
    return min([settings.max_length, *(int(each) for each in windows if each is not None)])


def stop_token_ids(target: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the tokens that end a text of a target; the tokenizer's if the model says nothing."""
    given = target.generation_config.eos_token_id
    given = tokenizer.eos_token_id if given is None else given
    if given is None:
        return []
    return list(given) if isinstance(given, (list, tuple)) else [int(given)]


def draft_name(settings: TrainingSettings) -> str | Path | None:
    return settings.draft and (zoo.draft_path(settings.draft) or settings.draft)


def target_name(settings: TrainingSettings) -> str | Path:
    return zoo.path("target") if settings.target == zoo.BUNDLED else settings.target


def start(settings: TrainingSettings, target: PreTrainedModel) -> PreTrainedModel:
    torch.manual_seed(settings.seed)
    name, draft = draft_name(settings), target
    if name is not None:
        draft = load_model("draft", name, torch.float32, target.device, local=only_cached("draft", name))
    if settings.first_layers is not None:
        draft = copy.deepcopy(EarlyExit(settings.first_layers).of(draft))
    elif name is None:
        draft = of_shape(target, settings.layers or 0, settings.width or 0)
    draft = draft.float().to(target.device)
    for parameter in draft.parameters():
        parameter.data = parameter.data.contiguous()  # small matrices may have been laid out by columns
        parameter.requires_grad_(True)
    return draft


def of_shape(target: PreTrainedModel, layers: int, width: int) -> PreTrainedModel:
    """Return an untrained model of the target's architecture and vocabulary, with other sizes."""
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
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_config(config, dtype=torch.float32)


def draft_model(pair: Pair) -> PreTrainedModel:
    """Return the draft model of a pair; raise `ValueError` if it has no weights that can be trained.

    A draft that shares weights with the target, such as an early exit, cannot be trained: the target would change.
    """
    from transformers import PreTrainedModel

    model = pair.drafter.model if isinstance(pair.drafter, ModelDrafter) else pair.drafter
    if not isinstance(model, PreTrainedModel):
        raise ValueError(
            f"a draft that can be trained is a model of transformers, but this one is a {type(model).__name__}"
        )
    target = pair.target.model
    if isinstance(target, torch.nn.Module):
        theirs = {_storage(each) for each in chain(target.parameters(), target.buffers())} - {0}
        if any(_storage(each) in theirs for each in model.parameters()):
            raise ValueError(
                "a draft that can be trained has weights of its own, but this one's are the target's, which training "
                "would change"
            )
    return model


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
