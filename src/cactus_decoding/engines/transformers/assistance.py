"""Who drafts in a `generate` call and how many tokens, by the names that transformers' assisted generation has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.generation.candidate_generator import CandidateGenerator

from cactus_decoding.core.checks import check_choice, check_integer, check_number
from cactus_decoding.core.drafting.lengths import ConfidenceStop, FixedLength, StatelessLength, confidence
from cactus_decoding.core.drafting.lookup import NgramDrafter
from cactus_decoding.core.drafting.model import ModelDrafter
from cactus_decoding.core.drafting.registry import as_draft_length
from cactus_decoding.core.models.tokenizers import compare_vocabularies
from cactus_decoding.core.types import Drafter, DraftLength
from cactus_decoding.engines.transformers.cached_model import vocabulary_size
from cactus_decoding.engines.transformers.candidates import CandidateGeneratorDrafter
from cactus_decoding.engines.transformers.early_exit import EarlyExit
from cactus_decoding.engines.transformers.generate_arguments import position_limit

DEFAULT_NUM_SPECULATIVE_TOKENS = 6
SCHEDULES = ("constant", "heuristic", "heuristic_transient")
# what `generate` fills in where nobody said anything
_LIBRARY_DEFAULTS: dict[str, Any] = {
    "num_assistant_tokens": 20,
    "num_assistant_tokens_schedule": "constant",
    "assistant_confidence_threshold": 0.4,
    "target_lookbehind": 10,
    "assistant_lookbehind": 10,
}
_SOURCES = ("drafter", "assistant_model", "assistant_early_exit", "prompt_lookup_num_tokens", "use_mtp")
ASSISTANT_SETTINGS = (*_LIBRARY_DEFAULTS, *_SOURCES[2:], "max_matching_ngram_size")
"""Settings of transformers' assisted generation, which may also be bound to `speculative_generate`."""


@dataclass
class ScheduledLength(StatelessLength):
    """Proposes two tokens more after a step that kept all of them, else one fewer: transformers' heuristic schedule.

    A step without proposals, as look-up has where nothing matches, changes nothing.
    """

    num_tokens: int  # proposals in the next step, 1 or more
    max_draft_tokens: int  # as many as the response may have
    threshold: float = 0.0  # a row whose likeliest token has less probability is the last of its step

    fixed: ClassVar[bool] = False

    def __str__(self) -> str:
        return "transformers' heuristic schedule"

    def __post_init__(self) -> None:
        self.first_draft_tokens = self.begin_step()  # for which a context window must have room

    def begin_step(self) -> int:
        return min(self.num_tokens, self.max_draft_tokens)

    def should_continue(self, logits: Tensor) -> bool:
        return not self.threshold or confidence(logits) >= self.threshold

    def end_draft(self, num_drafted: int) -> None:
        self._drafted = num_drafted

    def end_step(self, num_accepted: int) -> None:
        if self._drafted:
            self.num_tokens = self.num_tokens + 2 if num_accepted == self._drafted else max(1, self.num_tokens - 1)


@dataclass(frozen=True)
class Assistance:
    """What a call says about drafting.

    What is given by name in the call goes before the call's generation config, and that before the draft's own. Values
    that are the library's defaults say nothing in a generation config: `generate` puts them into every one.
    """

    model: PreTrainedModel
    config: GenerationConfig  # as prepared by `generate`
    given: Mapping[str, Any]  # what `generate` was called with by name, and what was bound beforehand
    assistant_model: PreTrainedModel | None = None
    drafter: Drafter | CandidateGenerator | None = None
    tokenizer: PreTrainedTokenizerBase | None = None  # the target's, for a draft with other tokens
    assistant_tokenizer: PreTrainedTokenizerBase | None = None  # that draft's

    def setting(self, name: str) -> Any:
        if self.given.get(name) is not None:
            return self.given[name]
        own = getattr(self.assistant_model, "generation_config", None) if name in _LIBRARY_DEFAULTS else None
        for config in (self.config, own):
            value = getattr(config, name, None)
            if value is not None and value != _LIBRARY_DEFAULTS.get(name):
                return value
        return None

    def draft_length(self, num_speculative_tokens: DraftLength | int | str | None, room: int) -> DraftLength:
        named = [n for n in ("num_assistant_tokens", "num_assistant_tokens_schedule") if self.given.get(n) is not None]
        looked_up = self.setting("prompt_lookup_num_tokens")
        if num_speculative_tokens is not None and named:
            raise ValueError(f"num_speculative_tokens and {named[0]} exclude each other: give one of them")
        if looked_up is not None and "num_assistant_tokens" in named:
            raise ValueError("num_assistant_tokens and prompt_lookup_num_tokens exclude each other: give one of them")
        if num_speculative_tokens is not None:
            return self._stopped_by_doubt(as_draft_length(num_speculative_tokens))
        number = looked_up if looked_up is not None else self.setting("num_assistant_tokens")
        schedule = self.setting("num_assistant_tokens_schedule")
        if number is not None:
            check_integer("num_assistant_tokens" if looked_up is None else "prompt_lookup_num_tokens", number, 0)
        if schedule is not None:
            check_choice("num_assistant_tokens_schedule", schedule, SCHEDULES)
        if schedule in (None, "constant"):
            return self._stopped_by_doubt(FixedLength(DEFAULT_NUM_SPECULATIVE_TOKENS if number is None else number))
        number = _LIBRARY_DEFAULTS["num_assistant_tokens"] if number is None else number
        return ScheduledLength(max(1, number), max(1, room), self._threshold_of_rows())

    def _threshold_of_rows(self) -> float:
        """Return below which confidence of a row drafting ends; 0 for never.

        Transformers looks at the drawn token's probability in what it is drawn from, with temperature and cuts. Where
        nothing is drawn (temperature 0), that is the row's likeliest token.
        """
        threshold = self.setting("assistant_confidence_threshold")
        if threshold is not None:
            check_number("assistant_confidence_threshold", threshold, 0, 1)
        return 0.0 if self.config.do_sample or threshold is None else float(threshold)

    def _stopped_by_doubt(self, draft_length: DraftLength) -> DraftLength:
        threshold = self._threshold_of_rows()
        if not threshold:
            return draft_length
        if type(draft_length) is not FixedLength:
            raise ValueError("assistant_confidence_threshold and a draft length exclude each other: give one of them")
        return ConfidenceStop(draft_length.max_draft_tokens, threshold)

    def remember(self, draft_length: DraftLength) -> None:
        """Leave the number of a ``heuristic`` schedule to the next response, as transformers does: with the draft."""
        lasting = self.setting("num_assistant_tokens_schedule") == "heuristic"
        if lasting and isinstance(draft_length, ScheduledLength) and self.assistant_model is not None:
            self.assistant_model.generation_config.num_assistant_tokens = draft_length.num_tokens

    def choose_drafter(self) -> Drafter:
        """Return what the caller wants to draft with; refuse none, two, and settings that go with another one."""
        sources = dict.fromkeys(_SOURCES) | {name: self.given.get(name) for name in _SOURCES[2:]}
        sources |= {"drafter": self.drafter, "assistant_model": self.assistant_model}
        named = [name for name, value in sources.items() if value is not None and value is not False]
        if len(named) > 1:
            raise ValueError(f"{named[1]} and {named[0]} exclude each other: give one of them")
        source = named[0] if named else self._source_of_config()
        if source is None:
            raise ValueError(
                "a draft is missing: give assistant_model, drafter, prompt_lookup_num_tokens, assistant_early_exit or "
                "use_mtp, or num_speculative_tokens=0 to sample without one"
            )
        self._check_settings_go_with(source)
        if source == "drafter":
            return self._given_drafter()
        if source == "assistant_model":
            return self._of_assistant_model()
        if source == "assistant_early_exit":
            return self._of_model(EarlyExit(self.setting(source)).of(self.model))
        if source == "prompt_lookup_num_tokens":
            return NgramDrafter(max_ngram_size=self.setting("max_matching_ngram_size") or 2)
        return CandidateGeneratorDrafter(use_mtp=True)

    def _source_of_config(self) -> str | None:
        for name in ("assistant_early_exit", "prompt_lookup_num_tokens"):
            if getattr(self.config, name, None) is not None:
                return name
        return "use_mtp" if getattr(self.config, "use_mtp", None) else None

    def _check_settings_go_with(self, source: str) -> None:
        if self.setting("max_matching_ngram_size") is not None and source != "prompt_lookup_num_tokens":
            raise ValueError(
                "max_matching_ngram_size goes with prompt_lookup_num_tokens, which is not what drafts here"
            )
        kind = getattr(self.config, "speculation_type", None)
        if kind is not None and (kind != "dflash" or source != "assistant_model"):
            raise ValueError(f"speculation_type must be None, or 'dflash' with an assistant_model, but is {kind!r}")
        for name in ("target_lookbehind", "assistant_lookbehind"):
            value = self.setting(name)
            own = getattr(getattr(self.assistant_model, "generation_config", None), name, None)
            if value is not None and (value != own or self.assistant_tokenizer is None):
                raise ValueError(
                    f"{name} is read from a draft's own generation config and goes with assistant_tokenizer: set "
                    f"assistant_model.generation_config.{name}"
                )
        if self.assistant_tokenizer is not None and (source != "assistant_model" or self.tokenizer is None):
            raise ValueError("assistant_tokenizer goes with assistant_model and tokenizer: give all three or none")
        threshold = self.setting("assistant_confidence_threshold")
        if threshold and (source != "assistant_model" or self.assistant_tokenizer is not None):
            raise ValueError(
                "assistant_confidence_threshold goes with an assistant_model that has the target's tokens; what drafts "
                "here has no use for it"
            )

    def _given_drafter(self) -> Drafter:
        if isinstance(self.drafter, CandidateGenerator):
            return CandidateGeneratorDrafter(self.drafter)
        if isinstance(self.drafter, type) or not isinstance(self.drafter, Drafter):
            hint = "; give a model as assistant_model" if isinstance(self.drafter, PreTrainedModel) else ""
            raise TypeError(
                "drafter must be a Drafter (a subclass of cactus_decoding.Drafter) or a candidate generator, but is "
                f"{_described(self.drafter)}{hint}"
            )
        if isinstance(self.drafter, ModelDrafter):
            self._check_vocabulary(self.drafter.vocabulary)
        return self.drafter

    def _of_assistant_model(self) -> Drafter:
        draft = self.assistant_model
        if not isinstance(draft, PreTrainedModel):
            raise TypeError(f"assistant_model must be a transformers model, but is {_described(draft)}")
        if draft.device != self.model.device:
            raise ValueError(
                f"assistant_model must be on the target's device {self.model.device}, but is on {draft.device}"
            )
        threshold = self.setting("assistant_confidence_threshold")
        kind = getattr(self.config, "speculation_type", None)
        if kind == "dflash" or type(draft).__name__.startswith(("Gemma4Assistant", "Gemma4UnifiedAssistant")):
            if threshold or self.assistant_tokenizer is not None:
                name = "assistant_confidence_threshold" if threshold else "assistant_tokenizer"
                raise ValueError(f"{name} does not go with a {type(draft).__name__}, which drafts in a way of its own")
            return CandidateGeneratorDrafter(assistant_model=draft, speculation_type=kind)
        if self.assistant_tokenizer is not None and self.tokenizer is not None:
            return self._across_tokenizers(draft, self.tokenizer, self.assistant_tokenizer)
        drafter = self._of_model(draft)
        self._check_vocabulary(drafter.vocabulary)
        if threshold and self.config.do_sample:
            return CandidateGeneratorDrafter(assistant_model=draft, assistant_confidence_threshold=threshold)
        return drafter

    def _of_model(self, draft: PreTrainedModel, *fitted: Any) -> ModelDrafter:
        drafter = ModelDrafter(draft, *fitted)
        drafter.max_length = position_limit(draft).end  # like the target it may go on beyond its window
        return drafter

    def _across_tokenizers(
        self, draft: PreTrainedModel, ours: PreTrainedTokenizerBase, theirs: PreTrainedTokenizerBase
    ) -> Drafter:
        """Return what drafts with nearly the target's tokens as they are, and with others by their texts."""
        names = [type(each).__name__ for each in (self.model, draft)]
        try:
            differing = compare_vocabularies(ours, theirs, *names)
        except ValueError:  # another tokenizer
            return CandidateGeneratorDrafter(
                assistant_model=draft,
                tokenizer=ours,
                assistant_tokenizer=theirs,
                retokenize=not self.config.do_sample,  # without probabilities the likeliest text is the best proposal
            )
        return self._of_model(draft, vocabulary_size(self.model), differing)

    def _check_vocabulary(self, width: int) -> None:
        if width != vocabulary_size(self.model):
            raise ValueError(
                f"the target's vocabulary has {vocabulary_size(self.model)} tokens, but the draft's has {width}; for "
                f"the same tokens with another padding, pass drafter=ModelDrafter(draft, {vocabulary_size(self.model)})"
                "; for other tokens, bind both tokenizers, which `generate` keeps from a callable: "
                "custom_generate=functools.partial(speculative_generate, tokenizer=..., assistant_tokenizer=...)"
            )


def _described(value: object) -> str:
    """Return a value's text, or its type where the text may fill a screen."""
    return repr(value) if isinstance(value, (str, int, float, type)) or value is None else f"a {type(value).__name__}"
