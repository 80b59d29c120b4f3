"""Candidate generators for a draft with other tokens than the target's."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList, PreTrainedModel, PreTrainedTokenizerBase
from transformers.generation import candidate_generator as generators
from transformers.generation.candidate_generator import CandidateGenerator

from cactus_decoding.core.models.base import check_fits
from cactus_decoding.engines.transformers.cached_model import check_can_roll_back, context_window, vocabulary_size
from cactus_decoding.engines.transformers.candidate_recipes import (
    CandidateRecipe,
    NoRoomError,
    RequestDistribution,
    draft_settings,
    set_knobs,
    unpadded,
)
from cactus_decoding.engines.transformers.compatibility import forget_cache


def retokenized(
    draft: PreTrainedModel, target_tokenizer: PreTrainedTokenizerBase, draft_tokenizer: PreTrainedTokenizerBase
) -> CandidateRecipe:
    check_can_roll_back(draft)

    def make(target: PreTrainedModel, prompt_ids: Tensor, processor: RequestDistribution) -> CandidateGenerator:
        _check_prompt(draft, prompt_ids, target_tokenizer, draft_tokenizer)
        # without probabilities the likeliest text is the best proposal
        generator = _Retokenized(prompt_ids, draft, target_tokenizer, draft_tokenizer, draft_settings(draft, False), {})
        set_knobs(generator)
        return generator

    return make


def translated(
    draft: PreTrainedModel, target_tokenizer: PreTrainedTokenizerBase, draft_tokenizer: PreTrainedTokenizerBase
) -> CandidateRecipe:
    check_can_roll_back(draft)

    @cache  # it compares two vocabularies
    def translate_to(vocabulary: int) -> Any:
        # Pruning the draft's head, as transformers does by default, would change the draft for good, and it reports
        # probabilities in another order than the tokens' where a vocabulary is not listed in the order of its ids.
        translator = generators.AssistantToTargetTranslator(
            target_tokenizer, draft_tokenizer, vocabulary, draft, assistant_prune_lm_head=False
        )
        _forget_doubles(translator)
        return translator

    def make(target: PreTrainedModel, prompt_ids: Tensor, processor: RequestDistribution) -> CandidateGenerator:
        _check_prompt(draft, prompt_ids, target_tokenizer, draft_tokenizer)
        translator = translate_to(vocabulary_size(target))
        processors = LogitsProcessorList([_TranslatedDistribution(processor, translator)])
        translator.logits_processors = processors  # these replace the generator's
        generator = _Translated(
            prompt_ids,
            draft,
            target_tokenizer,
            draft_tokenizer,
            draft_settings(draft),
            unpadded(prompt_ids),
            translator,
            logits_processor=processors,
        )
        set_knobs(generator)
        return generator

    return make


class _WithinWindow:
    """Keeps a draft with other tokens within its context window: how long it finds the text shows only here."""

    assistant_model: PreTrainedModel

    def _prepare_generation_args(self, input_ids: Tensor, min_new_tokens: int, max_new_tokens: int, *more: Any) -> Any:
        window = context_window(self.assistant_model)
        room = max_new_tokens if window is None else min(max_new_tokens, window - input_ids.shape[1])
        if room <= 0:
            raise NoRoomError
        return super()._prepare_generation_args(  # type: ignore[misc]
            input_ids, min(min_new_tokens, room), room, *more
        )


class _Retokenized(_WithinWindow, generators.AssistedCandidateGeneratorDifferentTokenizers):
    pass


class _Translated(_WithinWindow, generators.UniversalSpeculativeDecodingGenerator):
    def _prepare_assistant_input_ids(self, target_input_ids: Tensor) -> Any:
        last = int(target_input_ids[0, -1])
        if last not in self._atm_translator.target_to_assistant_input_ids:
            text = self.target_tokenizer.decode([last], skip_special_tokens=True)
            if not self.assistant_tokenizer(text, add_special_tokens=False).input_ids:
                # a token that leaves the draft nothing new to read: it starts from the whole text again
                self._target_seq_len_with_candidates, self._prev_assistant_ids = 0, None
                forget_cache(self.assistant_kwargs)
        return super()._prepare_assistant_input_ids(target_input_ids)


class _TranslatedDistribution(LogitsProcessor):
    """Applies a request's distribution to a draft with other tokens: there and back through the target's vocabulary."""

    def __init__(self, processor: RequestDistribution, translator: Any) -> None:
        self._processor, self._translator = processor, translator
        self._sequence: list[int] | None = None
        self._start = 0
        pairs = sorted(translator.target_to_assistant_input_ids.items())
        self._target_ids = torch.tensor([target_id for target_id, _ in pairs], dtype=torch.long)
        self._draft_ids = torch.tensor([draft_id for _, draft_id in pairs], dtype=torch.long)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        # the first call after `begin` shows where the candidates start
        if self._sequence is not self._processor.token_ids:
            self._sequence, self._start = self._processor.token_ids, input_ids.shape[1]
        nothing = input_ids.new_empty(1, 0)
        candidates = self._translator.get_target_ids(input_ids[:, : self._start], nothing, input_ids)[0].tolist()
        target_scores = self._translator.get_target_logits(scores)
        probs = self._processor.to_probs(target_scores, self._sequence + candidates)
        # where processors exclude all common tokens, any of them may be proposed: the target will not accept it
        target_scores = probs.log() if probs.sum() > 0 else target_scores
        result = torch.full_like(scores, -torch.inf)
        result[:, self._draft_ids.to(scores.device)] = target_scores[:, self._target_ids.to(scores.device)]
        return result


def _forget_doubles(translator: Any) -> None:
    """Keep one draft token for each target token: of two, the scores would be reported for either."""
    mapping = translator._assistant_to_target_input_ids
    chosen = torch.full_like(mapping, translator.SUPPRESS_TOKEN_ID)
    for target_id, draft_id in translator.target_to_assistant_input_ids.items():
        chosen[draft_id] = target_id
    translator._assistant_to_target_input_ids = chosen


def _check_prompt(
    draft: PreTrainedModel, prompt_ids: Tensor, target_tokenizer: Any, draft_tokenizer: PreTrainedTokenizerBase
) -> None:
    """Raise `ValueError` where a prompt does not fit into the context window of a draft with other tokens."""
    text = target_tokenizer.decode(prompt_ids[0], skip_special_tokens=True)
    check_fits("draft", context_window(draft), len(draft_tokenizer(text).input_ids), 0)
