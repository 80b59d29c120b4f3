"""Proposals from the candidate generators of Hugging Face transformers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.generation.candidate_generator import (
    AssistantVocabTranslatorCache,
    AssistedCandidateGenerator,
    CandidateGenerator,
    PromptLookupCandidateGenerator,
)

from cactus_decoding.core.checks import check_number
from cactus_decoding.core.models.base import BaseCachedModel
from cactus_decoding.core.types import Drafter, DraftLength, LogitsToProbs, Proposal
from cactus_decoding.engines.transformers.cached_model import (
    CachedModel,
    check_can_roll_back,
    context_window,
    vocabulary_size,
)
from cactus_decoding.engines.transformers.compatibility import candidates_of, needs_model_outputs

_NO_LIMIT = 2**30


class NoRoomError(Exception):
    """The draft's context window is full."""


class RequestDistribution(LogitsProcessor):
    """Turns a draft's scores into logarithms of the probabilities that the request samples from; ``rows`` keeps those.

    It takes the place of the target's processors: given those, transformers would apply temperature and cuts twice.
    """

    vocabulary: int  # width of the target's logits
    draft_ids: dict[int, int] | None = None  # of the target's tokens; None where they are the same

    def translate(self, draft_ids: dict[int, int], device: torch.device) -> None:
        self.draft_ids, self._read_as = draft_ids, {theirs: own for own, theirs in draft_ids.items()}
        self._own, self._theirs = (torch.tensor([*each], device=device) for each in (draft_ids, draft_ids.values()))

    def begin(self, token_ids: list[int], to_probs: LogitsToProbs) -> None:
        self._text, self._to_probs, self.rows = token_ids, to_probs, list[Tensor]()

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return log-probabilities for scores ``[1, draft vocabulary]``."""
        if not self.rows:
            self._start = input_ids.shape[1]
        drawn = input_ids[0, self._start :].tolist()
        own: Any = slice(min(scores.shape[-1], self.vocabulary))
        theirs: Any = own
        if self.draft_ids is not None:
            own, theirs, drawn = self._own, self._theirs, [self._read_as[token] for token in drawn]
        known = scores.new_full((1, self.vocabulary), -torch.inf)
        known[:, own] = scores[:, theirs]
        probs = self._to_probs(known, self._text + drawn)
        if not probs.sum() > 0:  # all common tokens are excluded: the target will not accept whichever is proposed
            probs = known.softmax(-1)
        self.rows.append(probs)
        result = torch.full_like(scores, -torch.inf)
        result[:, theirs] = probs[:, own].log().to(scores.dtype)
        return result


class CandidateGeneratorDrafter(Drafter):
    """Lets a transformers candidate generator draft: multi-token prediction, another tokenizer, and so on.

    Without a generator, transformers makes one for each response as its own `generate` does, and with it draws from the
    request's own distribution. Of a generator that is given, candidates drawn from scores are proposed with the softmax
    of these scores. Those that come without scores, or that are merely the likeliest tokens, count as deterministic.
    Candidates beyond the limit are cut off. Before each step the generator hears how many of the last ones were kept.

    Args:
        generator: one made for a single response.
        assistant_model: a draft model, which is not changed.
        tokenizer: the target's, for a draft with other tokens.
        assistant_tokenizer: that of the draft.
        retokenize: have a draft with other tokens write the likeliest text, which can propose any token, without
            probabilities. Otherwise it keeps to the tokens that both vocabularies have, and draws from these.
        use_mtp: draft with the target's own layers for multi-token prediction, read from its checkpoint.
        speculation_type: ``dflash`` for a DFlash model, which drafts a block at once.
        assistant_confidence_threshold: the draft stops after a token that is less likely, and keeps it; 0 never stops.

    Raises:
        TypeError: for a generator that is none.
        ValueError: for nothing to draft with, a threshold out of range, and what this version of transformers lacks.

    Source, for other tokens: Timor et al. (arXiv 2502.05202).

    Example:
        >>> from cactus_decoding import Pair, generate, load_pair
        >>> pair = load_pair()
        >>> drafter = CandidateGeneratorDrafter(assistant_model=pair.drafter.model, assistant_confidence_threshold=0.5)
        >>> generate(Pair(pair.target, drafter, pair.tokenizer), "Question:", max_new_tokens=4).finish_reason
        'length'
    """

    def __init__(
        self,
        generator: CandidateGenerator | None = None,
        *,
        assistant_model: PreTrainedModel | None = None,
        tokenizer: PreTrainedTokenizerBase | None = None,
        assistant_tokenizer: PreTrainedTokenizerBase | None = None,
        retokenize: bool = False,
        use_mtp: bool = False,
        speculation_type: str | None = None,
        assistant_confidence_threshold: float = 0.0,
    ) -> None:
        if generator is not None and not isinstance(generator, CandidateGenerator):
            raise TypeError(f"generator must be a candidate generator, but is {generator!r}")
        if generator is None and assistant_model is None and not use_mtp:
            raise ValueError("a draft is missing: give a generator, an assistant_model or use_mtp=True")
        check_number("assistant_confidence_threshold", assistant_confidence_threshold, 0, 1)
        asked: dict[str, Any] = {"use_mtp": use_mtp, "speculation_type": speculation_type}
        self._settings = {name: value for name, value in asked.items() if value}
        if missing := [name for name in self._settings if not hasattr(GenerationConfig(), name)]:
            raise ValueError(f"this version of transformers has no {missing[0]}")
        self._settings |= {"assistant_confidence_threshold": assistant_confidence_threshold}
        self._given, self._retokenize, self._served = generator, retokenize, False
        self._assistant, self._tokenizers = assistant_model, (tokenizer, assistant_tokenizer)
        self._target: CachedModel | None = None
        self._processor = RequestDistribution()
        self._generator: CandidateGenerator | None = None
        self._sequence: list[int] = []
        self._proposed: list[int] = []

    def begin_response(self, target: Any, draft_length: DraftLength) -> None:
        """Take the target of a response that is about to begin.

        Raises:
            ValueError: for one that is no model of transformers, which their generators look into.
        """
        if isinstance(target, BaseCachedModel) and not isinstance(target, CachedModel):
            raise ValueError(
                f"transformers' candidate generators need a target of transformers, but it is {target.name!r}"
            )
        self._target, self._generator = target, None
        self._processor.vocabulary = vocabulary_size(target.model)

    @torch.inference_mode()
    def propose(
        self, token_ids: list[int], limit: int, to_probs: LogitsToProbs, generator: torch.Generator | None
    ) -> Proposal:
        """Ask for up to ``limit`` candidates; none where the draft has no room for the sequence or not all its tokens.

        Raises:
            ValueError: before `begin_response`, for a generator made for one response that is to serve a second one,
                and for scores of it that are not as wide as the target's vocabulary.
        """
        if self._target is None:
            raise ValueError("the target is missing: call begin_response with it first, as the decoding loop does")
        if self._lacks(token_ids):
            return Proposal([], None)
        ids = torch.tensor([token_ids], device=self._target.device)
        kept = self._kept(token_ids)
        if self._generator is None or kept is None:
            self._generator = self._begin(self._target, ids)
        elif self._proposed:
            # of the target's scores, only the number of rows is ever looked at
            self._generator.update_candidate_strategy(ids, ids.new_empty(1, len(self._proposed) + 1, 0), kept)
        self._processor.begin(token_ids, to_probs)
        _limit(self._generator, len(token_ids), limit)
        seen: dict[str, Any] = {"is_first_iteration": kept is None}
        if needs_model_outputs(self._generator):
            positions = torch.arange(len(token_ids), device=ids.device).unsqueeze(0)
            seen |= {"model_kwargs": {"position_ids": positions, "attention_mask": None}, "n_last_matches": kept or 0}
            seen["model_outputs"] = self._target.outputs
        try:
            with _draws_from(generator, ids.device):
                candidate_ids, scores = candidates_of(self._generator, ids, **seen)
        except NoRoomError:
            candidate_ids, scores = ids, None
        self._sequence = list(token_ids)
        self._proposed = candidate_ids[0, len(token_ids) :].tolist()[:limit]
        rows = self._rows(scores)
        return Proposal(self._proposed, None if rows is None else rows[: len(self._proposed)].to(ids.device))

    def _lacks(self, token_ids: list[int]) -> bool:
        """Whether a draft with the target's tokens does not have all of a text."""
        if self._assistant is None or self._tokenizers[1] is not None:
            return False
        known = getattr(self._assistant.config.get_text_config(decoder=True), "vocab_size", None)
        return known is not None and max(token_ids) >= known

    def _kept(self, token_ids: list[int]) -> int | None:
        """Return how many of the last candidates were kept, or None where a generator begins anew."""
        count = len(token_ids) - len(self._sequence) - 1  # each step adds one token to those it keeps
        if self._generator is None or not 0 <= count <= len(self._proposed):
            return None
        ours, theirs = self._tokenizers
        if self._processor.draft_ids is not None and token_ids[-1] not in self._processor.draft_ids:
            text = ours.decode(token_ids[-1:], skip_special_tokens=True)  # type: ignore[union-attr]
            if not theirs(text, add_special_tokens=False).input_ids:  # type: ignore[misc]
                return None  # it leaves the draft nothing new to read
        return count if token_ids[:-1] == self._sequence + self._proposed[:count] else None

    def _begin(self, target: CachedModel, ids: Tensor) -> CandidateGenerator:
        generator = self._given or self._made(target.model, ids)
        if self._served and self._given is not None and not isinstance(generator, PromptLookupCandidateGenerator):
            raise ValueError(f"a {type(generator).__name__} serves one response: make one for each")
        self._served = True
        if needs_model_outputs(generator):
            target.reset()  # it is to have outputs for the whole prompt
            target.use_extra_inputs(dict(generator.model_kwargs_overrides))
        return generator

    def _made(self, target: PreTrainedModel, ids: Tensor) -> CandidateGenerator:
        draft, (ours, theirs) = copy.copy(self._assistant), self._tokenizers
        retokenized = theirs is not None and self._retokenize
        settings = _settings_for(target if draft is None else draft, not retokenized) | self._settings
        processors, named = LogitsProcessorList([self._processor]), {"attention_mask": torch.ones_like(ids)}
        if draft is not None:  # the copy says the number of candidates, and what is not set
            draft.generation_config = GenerationConfig(**settings)
        if retokenized:
            processors, named = LogitsProcessorList(), {}  # they would see the draft's own tokens
        elif theirs is not None:
            # Pruning the draft's head, as transformers does where it has no translator yet, would change the draft for
            # good, and it reports probabilities in another order than the tokens'.
            AssistantVocabTranslatorCache.get_translator(ours, theirs, vocabulary_size(target), draft)
        generator: CandidateGenerator = target._get_candidate_generator(
            generation_config=GenerationConfig(**settings, min_length=0, max_length=_NO_LIMIT),
            input_ids=ids,
            inputs_tensor=ids,
            logits_processor=processors,
            model_kwargs=named,
            assistant_model=draft,
            target_tokenizer=ours,
            assistant_tokenizer=theirs,
        )
        if isinstance(generator, AssistedCandidateGenerator):
            check_can_roll_back(generator.assistant_model)
            if (window := context_window(generator.assistant_model)) is not None:
                generator._prepare_generation_args = _within(generator._prepare_generation_args, window)
        if (translator := getattr(generator, "_atm_translator", None)) is not None:
            if translator.assistant_prune_lm_head:
                raise ValueError("transformers has changed a draft for these tokenizers: load them and the draft anew")
            generator._atm_translator = translator = copy.copy(translator)
            translator.logits_processors = processors  # these replace the generator's
            self._processor.translate(translator.target_to_assistant_input_ids, generator.assistant_model.device)
        return generator

    def _rows(self, scores: Tensor | None) -> Tensor | None:
        """Return the probabilities that candidates were drawn from; None where they were not."""
        if not self._proposed or self._processor.rows:
            return torch.cat(self._processor.rows) if self._proposed else None
        if self._given is None or scores is None or not _is_sampled(self._given):
            return None
        if scores.shape[-1] != self._processor.vocabulary:
            raise ValueError(
                f"the target's vocabulary has {self._processor.vocabulary} tokens, "
                f"but {type(self._given).__name__} scores {scores.shape[-1]}"
            )
        return scores[0].float().softmax(-1)


def _settings_for(draft: PreTrainedModel, do_sample: bool) -> dict[str, Any]:
    """Return settings that change no distribution, and leave the number of candidates to the decoding loop."""
    own = getattr(draft, "generation_config", GenerationConfig())
    ends = own.eos_token_id if isinstance(own.eos_token_id, (list, tuple)) else [own.eos_token_id]
    return {
        "do_sample": do_sample,
        "top_k": 0 if do_sample else None,
        "eos_token_id": own.eos_token_id,
        "pad_token_id": ends[0] if ends else None,  # tokens of a pad that is no end would be taken for padding
        "num_assistant_tokens": _NO_LIMIT,
        "num_assistant_tokens_schedule": "constant",
        "target_lookbehind": own.target_lookbehind,
        "assistant_lookbehind": own.assistant_lookbehind,
    }


def _limit(generator: CandidateGenerator, length: int, max_candidates: int) -> None:
    """Ask for at most ``max_candidates`` after a sequence of some length, where a generator can be asked."""
    if hasattr(generator, "num_assistant_tokens"):
        generator.num_assistant_tokens = min(int(generator.num_assistant_tokens), max_candidates)
    if hasattr(generator, "main_model_max_length"):
        generator.main_model_max_length = length + max_candidates + 1  # it leaves one place for the next token


def _within(prepare: Callable[..., Any], window: int) -> Callable[..., Any]:
    """Keep a draft within its context window: how long it finds a text of other tokens shows only here."""

    def prepared(input_ids: Tensor, min_new_tokens: int, max_new_tokens: int, *more: Any) -> Any:
        room = min(max_new_tokens, window - input_ids.shape[1])
        if room <= 0:
            raise NoRoomError
        return prepare(input_ids, min(min_new_tokens, room), room, *more)

    return prepared


def _is_sampled(generator: CandidateGenerator) -> bool:
    """Whether candidates are drawn from their scores, and not just the likeliest tokens."""
    sampled = getattr(getattr(generator, "generation_config", generator), "do_sample", True)
    if sampled is None:  # what is not set falls back to the draft's own configuration
        sampled = generator.assistant_model.generation_config.do_sample
    return bool(sampled) and type(generator).__name__ != "SinglePositionMultiTokenCandidateGenerator"


@contextmanager
def _draws_from(generator: torch.Generator | None, device: torch.device) -> Iterator[None]:
    """Seed torch's global generators, which transformers draws from, out of ours, and put them back afterwards."""
    if generator is None:
        yield
        return
    seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
    on_gpu = device.type == "cuda"
    with torch.random.fork_rng([device] if on_gpu else []):
        (torch.manual_seed if on_gpu else torch.default_generator.manual_seed)(seed)
        yield
