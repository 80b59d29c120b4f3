"""What a transformers `generate` call asks for, in this package's terms, and how far its model's positions reach."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import (
    EosTokenCriteria,
    GenerationConfig,
    LogitsProcessorList,
    MaxLengthCriteria,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    StoppingCriteriaList,
    StopStringCriteria,
)
from transformers.generation import logits_process

from cactus_decoding.core.sampling.params import SamplingParams
from cactus_decoding.core.types import Drafter, DraftLength, LogitsToProbs, Proposal
from cactus_decoding.engines.transformers.cached_model import check_can_roll_back, context_window
from cactus_decoding.engines.transformers.compatibility import CACHE_NAMES, cache_of

# They look at one row at a time and at no token ids, so all rows of a block can go through at once.
_ROW_WISE = (
    logits_process.EpsilonLogitsWarper,
    logits_process.EtaLogitsWarper,
    logits_process.InfNanRemoveLogitsProcessor,
    logits_process.LogitNormalization,
    logits_process.MinPLogitsWarper,
    logits_process.SuppressTokensLogitsProcessor,
    logits_process.TemperatureLogitsWarper,
    logits_process.TopKLogitsWarper,
    logits_process.TopPLogitsWarper,
    logits_process.TypicalLogitsWarper,
)
# They remember earlier calls, and so cannot take back a rejected token.
_WITH_MEMORY = (
    logits_process.SynthIDTextWatermarkLogitsProcessor,
    logits_process.UnbatchedClassifierFreeGuidanceLogitsProcessor,
)
OWN_CACHE = "past_key_values or cache is not supported: the cache must be rolled back, so it is made here"
# What `generate` itself prepares for a text-only decoder.
_PREPARED = frozenset({"attention_mask", "logits_to_keep", "position_ids", "use_cache", *CACHE_NAMES})


class ProcessedProbs:
    """Rows after a `generate` call's processors, each of which sees the tokens before the row; see `RowSampling`.

    Processors see the padding too, as in `generate`. All the mass goes to the most likely token without ``do_sample``.
    Where `sampling_of` says what the processors come to (``plain``), they are left out, which is faster.
    """

    def __init__(
        self,
        processors: LogitsProcessorList,
        config: GenerationConfig,
        input_ids: Tensor,
        padding: int,
        plain: SamplingParams | None = None,
    ) -> None:
        self.plain = plain
        kept = [processor for processor in processors if not _vanishes(processor)]
        self._processors = [(type(processor) in _ROW_WISE, processor) for processor in kept]
        self._padding = input_ids[0, :padding].tolist()
        greedy = not config.do_sample or len(kept) < len(processors)
        self._sampling = SamplingParams(temperature=0.0 if greedy else 1.0)
        warpers = (each for each in kept if isinstance(each, logits_process.TemperatureLogitsWarper))
        # what the processors divide by; 0 where the most likely token is taken
        self.temperature = 0.0 if greedy else math.prod(each.temperature for each in warpers)

    def __call__(self, logits: Tensor, token_ids: list[int]) -> Tensor:
        """Return probabilities ``[rows, vocabulary]``; the last row follows all the tokens."""
        return self._sampling(self._processed(logits, token_ids)) if self.plain is None else self.plain(logits)

    def untempered(self, logits: Tensor, token_ids: list[int]) -> Tensor:
        return SamplingParams()(self._processed(logits, token_ids))

    def _processed(self, logits: Tensor, token_ids: list[int]) -> Tensor:
        scores = logits.to(torch.float32, copy=True)  # what `generate` works with; processors may write into it
        history: Tensor | None = None
        for row_wise, processor in self._processors:
            if row_wise:
                scores = processor(None, scores)
                continue
            if history is None:
                history = torch.tensor([self._padding + token_ids], device=scores.device)
            first = history.shape[1] - len(scores) + 1
            rows = [processor(history[:, : first + i], scores[i : i + 1]) for i in range(len(scores))]
            scores = torch.cat(rows)
        return scores


def _vanishes(processor: object) -> bool:
    """Say whether a processor divides by a temperature so low that it means greedy decoding, and would overflow."""
    if not isinstance(processor, logits_process.TemperatureLogitsWarper):
        return False
    return SamplingParams(temperature=processor.temperature).temperature == 0


def sampling_of(processors: LogitsProcessorList, config: GenerationConfig) -> SamplingParams | None:
    """Return what a call's processors do where they are plain sampling in the usual order; None where they do more."""
    if not config.do_sample:
        return None if len(processors) else SamplingParams(temperature=0.0)
    given: dict[str, Any] = {}
    warpers = (
        logits_process.TemperatureLogitsWarper,
        logits_process.TopKLogitsWarper,
        logits_process.TopPLogitsWarper,
        logits_process.MinPLogitsWarper,
    )
    order = [*zip(warpers, vars(SamplingParams()), strict=True)]  # attributes have the same names
    for processor in processors:
        while order and type(processor) is not order[0][0]:
            order.pop(0)
        if not order or getattr(processor, "min_tokens_to_keep", 1) > 1:
            return None
        name = order.pop(0)[1]
        if getattr(processor, "filter_value", -math.inf) != -math.inf:
            return None
        given[name] = getattr(processor, name)
    try:
        return SamplingParams(**given)
    except ValueError:  # transformers allows more, such as a top-p of 0
        return None


def with_stop_strings(
    criteria: StoppingCriteriaList, strings: str | Sequence[str] | None, tokenizer: PreTrainedTokenizerBase | None
) -> StoppingCriteriaList:
    """Return stopping criteria that also end a response at a stop string, as `generate` reads it."""
    if not strings:
        return criteria
    if tokenizer is None:
        raise ValueError(
            "stop_strings need the target's tokenizer, which `generate` keeps from a callable: bind it, as "
            "custom_generate=functools.partial(speculative_generate, tokenizer=tokenizer)"
        )
    strings = strings if isinstance(strings, str) else list(strings)
    return StoppingCriteriaList([*criteria, StopStringCriteria(tokenizer, strings)])


class StoppingCheck:
    def __init__(
        self, criteria: StoppingCriteriaList, config: GenerationConfig, input_ids: Tensor, padding: int
    ) -> None:
        lengths = [criterion.max_length for criterion in criteria if type(criterion) is MaxLengthCriteria]
        self.max_length = int(min(lengths, default=config.max_length)) - padding
        ends = [criterion for criterion in criteria if type(criterion) is EosTokenCriteria]
        self._end_ids = frozenset(int(token) for criterion in ends for token in criterion.eos_token_id)
        # the loop looks after lengths, and a set after end tokens: the rest need a tensor of all tokens
        self._others = [c for c in criteria if type(c) not in (MaxLengthCriteria, EosTokenCriteria)]
        named = [string for c in self._others if isinstance(c, StopStringCriteria) for string in c.stop_strings]
        self.strings = tuple(string for string in named if string)
        self._padding, self._device = input_ids[0, :padding].tolist(), input_ids.device

    def __call__(self, token_ids: list[int]) -> bool:
        if not self._others:
            return token_ids[-1] in self._end_ids
        sequence = torch.tensor([self._padding + token_ids], device=self._device)
        verdicts = [bool(torch.as_tensor(criterion(sequence, None)).any()) for criterion in self._others]
        return token_ids[-1] in self._end_ids or any(verdicts)


def check_call(
    model: PreTrainedModel,
    input_ids: Tensor,
    processors: LogitsProcessorList,
    config: GenerationConfig,
    model_kwargs: dict[str, Any],
) -> None:
    """Raise `ValueError` for what a draft-and-verify loop over one sequence cannot do."""
    check_can_roll_back(model, by_copies=True)
    if (mode := config.get_generation_mode()) not in ("greedy_search", "sample", "assisted_generation"):
        raise ValueError(f"speculative_generate does greedy search and sampling with one beam, but not {mode.value}")
    if (config.num_return_sequences or 1) > 1:
        raise ValueError(f"num_return_sequences must be 1, but is {config.num_return_sequences}")
    extra = sorted(name for name, value in model_kwargs.items() if name not in _PREPARED and _carries(name, value))
    if extra:
        raise ValueError(f"speculative_generate takes text only, but was given {', '.join(extra)}")
    if input_ids.shape[0] != 1:
        raise ValueError(f"speculative_generate takes one prompt at a time, but was given {input_ids.shape[0]}")
    if input_ids.shape[1] == 0:
        raise ValueError("the prompt must have at least one token, but has none")
    outputs = [name for name in ("output_logits", "output_scores") if getattr(config, name)]
    if outputs:
        raise ValueError(f"speculative_generate returns sequences only, but {', '.join(outputs)} is set")
    if config.is_assistant:
        raise ValueError("is_assistant is what transformers sets for a draft, and speculative_generate drives targets")
    if getattr(config, "prefill_chunk_size", None) is not None:
        raise ValueError("prefill_chunk_size is not supported: a prompt is read at once")
    if getattr(config, "assistant_ensemble_weight", None) is not None:
        raise ValueError("assistant_ensemble_weight is not looked at: give rule='ensemble:weight=...' instead")
    cache = cache_of(model_kwargs)
    if cache is not None and cache.get_seq_length() > 0:
        raise ValueError(OWN_CACHE)
    if model_kwargs.get("use_cache") is False:
        raise ValueError("use_cache must be true, but is False")
    if config.cache_implementation not in (None, "dynamic"):
        raise ValueError(f"cache_implementation must be None or 'dynamic', but is {config.cache_implementation!r}")
    for processor in processors:
        if isinstance(processor, _WITH_MEMORY):
            raise ValueError(
                f"{type(processor).__name__} remembers earlier calls, and cannot take back a rejected token"
            )


def _carries(name: str, value: object) -> bool:
    """Say whether an input tells the model anything: `generate` itself adds empty ones, such as encoder outputs."""
    if isinstance(value, Tensor):
        # a kind for each token, of which 0 is text: processors make it for texts too
        return bool(value.any()) if name == "mm_token_type_ids" else value.numel() > 0
    if isinstance(value, Mapping):
        return any(_carries("", one) for one in value.values())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return any(_carries("", one) for one in value)
    return value is not None and value is not False


def left_padding(input_ids: Tensor, model_kwargs: dict[str, Any]) -> int:
    """Return how many tokens of padding precede the prompt; raise `ValueError` for any other mask or positions."""
    length = input_ids.shape[1]
    mask = model_kwargs.get("attention_mask")
    kept = length if mask is None else int((mask[0] != 0).sum())
    padding = length - kept
    if mask is not None and (tuple(mask.shape) != (1, length) or not kept or not bool((mask[0, padding:] != 0).all())):
        raise ValueError(
            f"attention_mask must be ones, perhaps after zeros on the left, but is {mask.tolist()} (where none is "
            "given, `generate` takes pad tokens for padding)"
        )
    positions = model_kwargs.get("position_ids")
    if positions is not None:
        expected = torch.arange(kept, device=positions.device)
        if positions.shape[-1] != length or not bool((positions[..., padding:] == expected).all()):
            raise ValueError(f"position_ids must count the prompt's tokens from 0, but are {positions.tolist()}")
    return padding


class PositionLimit(NamedTuple):
    end: int | None  # tokens that the sequence may have, or None where it may go on, as rotations and linear biases do
    cause: str = ""  # why it ends there


def position_limit(model: PreTrainedModel, prompt_length: int | None = None) -> PositionLimit:
    """Return how far a model goes: where `generate` itself goes on beyond the context window, there is no end.

    A table of positions has an end, and `generate` fails there. A model that changes its rotations once, and whose
    `generate` then reads the whole text again (Phi-3 and its relatives), is not read across that place.
    """
    text = model.config.get_text_config(decoder=True)
    change = _rotations_change_at(text, "longrope")
    # set on the configuration itself, it makes their `prepare_inputs_for_generation` drop the cache
    own = getattr(text, "original_max_position_embeddings", None)
    rereads = own == change and "phi" in str(text.model_type)
    if change is not None and rereads and prompt_length is not None and prompt_length <= change:
        return PositionLimit(change, "where its rotations change and all that was read would have to be read again")
    rotates = any(name.endswith("inv_freq") for name, _ in model.named_buffers())
    if rotates or getattr(text, "alibi", False):
        return PositionLimit(None)
    end = context_window(model) or getattr(text, "max_seq_len", None)  # MPT's table of biases
    return PositionLimit(end, "which is all that its table of positions holds")


def read_in_blocks(model: PreTrainedModel, drafter: Drafter, prompt_length: int) -> Drafter:
    """Return a drafter that proposes nothing where reading several tokens at once would not be what `generate` reads.

    Dynamic rotations depend on the length of the text when a token is read: beyond the window, tokens are read singly.
    Where a prompt's tokens see each other in both directions (PaliGemma), proposals are kept from being seen with it.
    """
    text = model.config.get_text_config(decoder=True)
    if getattr(text, "use_bidirectional_attention", None) in (True, "all"):
        drafter = _BlocksWithin(drafter, prompt_length, beyond=True)
    dynamic, change = _rotations_change_at(text, "dynamic"), _rotations_change_at(text, "longrope")
    if dynamic is not None:
        return _BlocksWithin(drafter, dynamic, beyond=False)
    return drafter if change is None else _BlocksWithin(drafter, change, beyond=True)


def _rotations_change_at(text: Any, kind: str) -> int | None:
    """Return after how many tokens rotations of a kind change, or None for a model that has none of these."""
    given = getattr(text, "rope_parameters", None) or {}
    for one in (given, *(value for value in given.values() if isinstance(value, dict))):  # perhaps by kinds of layers
        if kind in str(one.get("rope_type")):
            own = one.get("original_max_position_embeddings")
            window = text.max_position_embeddings
            return int(own if kind == "longrope" and own is not None else window)
    return None


class _BlocksWithin(Drafter):
    """Proposes no block that reaches across a place; after it, as many as ever or nothing."""

    def __init__(self, drafter: Drafter, place: int, *, beyond: bool) -> None:
        self._drafter, self._place, self._beyond = drafter, place, beyond
        self.max_length = drafter.max_length
        for name in ("fixed_blocks", "grows_trees", "may_be_left_out"):  # what may be asked of it is the drafter's
            vars(self)[name] = getattr(drafter, name)

    def begin_response(self, target: Any, draft_length: DraftLength) -> None:
        self._drafter.begin_response(target, draft_length)

    def propose(
        self, token_ids: list[int], limit: int, to_probs: LogitsToProbs, generator: torch.Generator | None
    ) -> Proposal:
        if len(token_ids) <= self._place or not self._beyond:
            limit = min(limit, self._place - len(token_ids))
        if limit <= 0:
            return Proposal([], None)
        return self._drafter.propose(token_ids, limit, to_probs, generator)
