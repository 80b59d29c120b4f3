"""How to make each of transformers' candidate generators so that it draws from the request's own distribution."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.generation import candidate_generator as generators
from transformers.generation.candidate_generator import CandidateGenerator

from cactus_decoding.core.checks import check_integer, check_number
from cactus_decoding.core.models.base import check_fits
from cactus_decoding.core.sampling.params import SamplingParams
from cactus_decoding.core.types import LogitsToProbs
from cactus_decoding.engines.transformers.cached_model import check_can_roll_back, context_window, vocabulary_size
from cactus_decoding.engines.transformers.compatibility import (
    candidate_generator,
    check_early_exit_works,
    forget_cache,
    required_arguments,
)

_NO_LIMIT = 2**30


def fit_width(values: Tensor, width: int, fill: float) -> Tensor:
    return functional.pad(values, (0, width - values.shape[-1]), value=fill)  # a negative pad cuts


class RequestDistribution(LogitsProcessor):
    """Turns a draft's scores into logarithms of the probabilities that the request samples from.

    It takes the place of the target's processors: given those, transformers would apply temperature and cuts twice.
    """

    def __init__(self) -> None:
        self.vocabulary: int | None = None  # width of the target's logits; None if it is the draft's

    def begin(self, token_ids: list[int], to_probs: LogitsToProbs) -> None:
        self.token_ids, self.to_probs = list(token_ids), to_probs

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return log-probabilities for scores ``[1, draft vocabulary]``."""
        width = scores.shape[-1]
        fitted = scores if self.vocabulary is None else fit_width(scores, self.vocabulary, -torch.inf)
        return fit_width(self.to_probs(fitted, input_ids[0].tolist()).log(), width, -torch.inf)


class NoRoomError(Exception):
    """The draft's context window is full."""


CandidateRecipe = Callable[[PreTrainedModel, Tensor, RequestDistribution], CandidateGenerator]
"""``(target, prompt_ids [1, n], processor) -> generator``, called once a response."""


def limit(generator: CandidateGenerator, length: int, max_candidates: int) -> None:
    """Ask for at most ``max_candidates`` after a sequence of some length, where a generator can be asked."""
    if hasattr(generator, "num_assistant_tokens"):
        generator.num_assistant_tokens = min(int(generator.num_assistant_tokens), max_candidates)
    if hasattr(generator, "main_model_max_length"):
        generator.main_model_max_length = length + max_candidates + 1  # it leaves one place for the next token


def is_sampled(generator: CandidateGenerator) -> bool:
    """Say whether candidates are drawn from their scores, and not just the likeliest tokens."""
    if type(generator).__name__ == "SinglePositionMultiTokenCandidateGenerator":
        return False
    config = getattr(generator, "generation_config", None)
    sampled = getattr(generator, "do_sample", True) if config is None else config.do_sample
    draft = getattr(generator, "assistant_model", None)
    if sampled is None and draft is not None:  # what is not set falls back to the draft's own configuration
        sampled = draft.generation_config.do_sample
    return bool(sampled)


class _EarlyExit(generators.EarlyExitCandidateGenerator):
    def get_candidates(self, input_ids: Tensor, **given: Any) -> Any:
        try:
            return super().get_candidates(input_ids, **given)
        except IndexError as error:  # the cache has as many layers as were asked for, the model runs all of them
            name = type(self.assistant_model).__name__
            raise ValueError(f"{name} cannot exit early: it runs all layers whatever its configuration says") from error


def assisted(draft: PreTrainedModel, confidence_threshold: float) -> CandidateRecipe:
    check_can_roll_back(draft)
    check_number("confidence_threshold", confidence_threshold, 0, 1)

    def make(target: PreTrainedModel, prompt_ids: Tensor, processor: RequestDistribution) -> CandidateGenerator:
        settings, processors = draft_settings(draft), LogitsProcessorList([processor])
        generator = generators.AssistedCandidateGenerator(
            prompt_ids, draft, settings, unpadded(prompt_ids), logits_processor=processors
        )
        return with_knobs(generator, confidence_threshold)

    return make


def early_exit(exit_layer: int) -> CandidateRecipe:
    check_integer("exit_layer", exit_layer, 1)
    check_early_exit_works()

    def make(target: PreTrainedModel, prompt_ids: Tensor, processor: RequestDistribution) -> CandidateGenerator:
        check_integer("exit_layer", exit_layer, 1, target.config.get_text_config(decoder=True).num_hidden_layers - 1)
        settings, processors = draft_settings(target), LogitsProcessorList([processor])
        settings.assistant_early_exit = exit_layer
        return with_knobs(_EarlyExit(prompt_ids, target, settings, unpadded(prompt_ids), logits_processor=processors))

    return make


def multi_token_prediction() -> CandidateRecipe:
    unused: list[tuple[PreTrainedModel, Any]] = []  # made once for a target: it reads the layers from the checkpoint

    def make(target: PreTrainedModel, prompt_ids: Tensor, processor: RequestDistribution) -> CandidateGenerator:
        if not unused or unused[0][0] is not target:
            made = candidate_generator("MTPCandidateGenerator")(
                main_model=target, generation_config=draft_settings(target), model_kwargs={}
            )
            unused[:] = [(target, made)]
        generator = copy.copy(unused[0][1])
        generator.mtp_cache = copy.deepcopy(generator.mtp_cache)
        generator.logits_processor = LogitsProcessorList([processor])
        return generator

    return make


def dflash(draft: PreTrainedModel) -> CandidateRecipe:
    def make(target: PreTrainedModel, prompt_ids: Tensor, processor: RequestDistribution) -> CandidateGenerator:
        return candidate_generator("DFlashTokenCandidateGenerator")(
            assistant_model=draft,
            main_model_input_embeddings=target.get_input_embeddings(),
            main_model_output_embeddings=target.get_output_embeddings(),
            generation_config=draft_settings(target),
            logits_processor=LogitsProcessorList([processor]),
        )

    return make


def shared_states(draft: PreTrainedModel) -> CandidateRecipe:
    def make(target: PreTrainedModel, prompt_ids: Tensor, processor: RequestDistribution) -> CandidateGenerator:
        make_one = candidate_generator("SinglePositionMultiTokenCandidateGenerator")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            generator = make_one(
                assistant_model=draft,
                target_model_input_embeddings=target.get_input_embeddings(),
                generation_config=draft_settings(target),
                **required_arguments(make_one, input_ids=prompt_ids, model_kwargs={}),
            )
        generator.num_assistant_tokens = _NO_LIMIT
        return generator

    return make


def draft_settings(draft: PreTrainedModel, sampled: bool = True) -> GenerationConfig:
    """Return settings for a draft that change no distribution: what is not set would come from the draft's own."""
    eos = draft.generation_config.eos_token_id
    first = eos[0] if isinstance(eos, (list, tuple)) and eos else eos
    settings = GenerationConfig(
        do_sample=sampled,
        repetition_penalty=1.0,
        no_repeat_ngram_size=0,
        min_length=0,
        max_length=_NO_LIMIT,
        eos_token_id=eos,
        pad_token_id=first,  # tokens of a pad that is no end would be taken for padding
    )
    if sampled:
        settings.update(**vars(SamplingParams()), typical_p=1.0)
    return settings


def unpadded(prompt_ids: Tensor) -> dict[str, Any]:
    """Return a mask without padding: one that is missing is guessed from pad tokens."""
    return {"attention_mask": torch.ones_like(prompt_ids)}


def with_knobs(generator: Any, confidence_threshold: float = 0.0) -> CandidateGenerator:
    """Leave the number of candidates to the decoding loop; generators read other settings from the draft."""
    generator.num_assistant_tokens = _NO_LIMIT
    generator.assistant_generation_config.num_assistant_tokens_schedule = "constant"
    generator.assistant_generation_config.assistant_confidence_threshold = confidence_threshold
    generator.generation_config.assistant_confidence_threshold = confidence_threshold
    if confidence_threshold and not hasattr(generator, "probs"):
        generator.probs, generator.matches = [], []  # made only where the draft's own threshold is not zero
    made: CandidateGenerator = generator
    return made


def retokenized(
    draft: PreTrainedModel, target_tokenizer: PreTrainedTokenizerBase, draft_tokenizer: PreTrainedTokenizerBase
) -> CandidateRecipe:
    check_can_roll_back(draft)

    def make(target: PreTrainedModel, prompt_ids: Tensor, processor: RequestDistribution) -> CandidateGenerator:
        _check_prompt(draft, prompt_ids, target_tokenizer, draft_tokenizer)
        # without probabilities the likeliest text is the best proposal
        settings = draft_settings(draft, sampled=False)
        return with_knobs(_Retokenized(prompt_ids, draft, target_tokenizer, draft_tokenizer, settings, {}))

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
        tokenizers, settings = (target_tokenizer, draft_tokenizer), draft_settings(draft)
        generator = _Translated(
            prompt_ids, draft, *tokenizers, settings, unpadded(prompt_ids), translator, logits_processor=processors
        )
        return with_knobs(generator)

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
