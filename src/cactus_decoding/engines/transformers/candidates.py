"""Proposals from the candidate generators of Hugging Face transformers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.generation.candidate_generator import (
    CandidateGenerator,
    EarlyExitCandidateGenerator,
    PromptLookupCandidateGenerator,
)

from cactus_decoding.core.models.base import BaseCachedModel
from cactus_decoding.core.types import Drafter, DraftLength, LogitsToProbs, Proposal
from cactus_decoding.engines.transformers import candidate_recipes as recipes
from cactus_decoding.engines.transformers.cached_model import CachedModel, context_window, vocabulary_size
from cactus_decoding.engines.transformers.candidate_recipes import CandidateRecipe, RequestDistribution, fit_width
from cactus_decoding.engines.transformers.compatibility import candidates_of, needs_model_outputs


class CandidateGeneratorDrafter(Drafter):
    """Lets a transformers candidate generator draft: early exit, multi-token prediction, another tokenizer, and so on.

    Candidates drawn from scores are proposed with the softmax of these scores, which they were drawn from. Those that
    come without scores, or that are merely the likeliest tokens, count as deterministic. Candidates beyond the limit
    are cut off. Before each step the generator hears how many candidates of the last one were kept.

    Attributes:
        max_length: tokens that the context window of a draft with the target's tokens holds, if there is one.

    Args:
        generator: one made for a single response, or a recipe that makes one for each. The class methods are recipes.

    Raises:
        TypeError: for anything else.

    Example:
        >>> from transformers.generation.candidate_generator import PromptLookupCandidateGenerator
        >>> drafter = CandidateGeneratorDrafter(PromptLookupCandidateGenerator(max_length=64))
        >>> drafter.propose([5, 6, 7, 8, 5, 6], 2, lambda logits, ids: logits, None).token_ids
        [7, 8]
    """

    def __init__(self, generator: CandidateGenerator | CandidateRecipe) -> None:
        if not isinstance(generator, CandidateGenerator) and not callable(generator):
            raise TypeError(f"generator must be a candidate generator or make one, but is {generator!r}")
        self._source = generator
        self.max_length: int | None = None
        self._known: int | None = None  # width of the draft's vocabulary, where tokens of the target may lie outside
        self._target: CachedModel | None = None
        self._processor = RequestDistribution()
        self._generator: CandidateGenerator | None = None
        self._served = False
        self._sequence: list[int] = []
        self._proposed: list[int] = []

    @classmethod
    def assisted(cls, draft: PreTrainedModel, *, confidence_threshold: float = 0.0) -> Self:
        """Draft with a smaller model, and stop after a token that is less likely than a threshold.

        The token itself is kept, so stopping does not change the draft's distribution. Without a threshold,
        `ModelDrafter` does the same faster.

        Args:
            draft: a causal language model with the target's tokens.
            confidence_threshold: in [0, 1], of the request's distribution, where at temperature 0 every token is
                certain; 0 never stops. Where scikit-learn is installed, transformers adapts it.
        """
        drafter = cls(recipes.assisted(draft, confidence_threshold))
        drafter.max_length, drafter._known = context_window(draft), vocabulary_size(draft)
        return drafter

    @classmethod
    def early_exit(cls, exit_layer: int) -> Self:
        """Draft with the target's own first layers, for models trained to allow it such as LayerSkip's.

        The target's code must honour ``config.num_hidden_layers`` when it runs, as Llama's and its relatives' does.

        Args:
            exit_layer: how many layers draft, from 1 to one less than the target has.
        """
        return cls(recipes.early_exit(exit_layer))

    @classmethod
    def cross_tokenizer(
        cls,
        draft: PreTrainedModel,
        target_tokenizer: PreTrainedTokenizerBase,
        draft_tokenizer: PreTrainedTokenizerBase,
        *,
        retokenize: bool = False,
    ) -> Self:
        """Draft with a model that has other tokens than the target.

        Args:
            draft: a causal language model; it is not changed.
            target_tokenizer: of the target.
            draft_tokenizer: of the draft.
            retokenize: draft the likeliest text and read it with the target's tokenizer, which can propose any token,
                without probabilities. Otherwise the draft keeps to tokens that both vocabularies have, and its
                probabilities, after the request's own sampling parameters, are used.

        Source: Timor et al. (arXiv 2502.05202).
        """
        make = recipes.retokenized if retokenize else recipes.translated
        return cls(make(draft, target_tokenizer, draft_tokenizer))

    @classmethod
    def multi_token_prediction(cls) -> Self:
        """Draft with the target's own multi-token prediction layers, read from its checkpoint."""
        return cls(recipes.multi_token_prediction())

    @classmethod
    def dflash(cls, draft: PreTrainedModel) -> Self:
        """Draft a block at once from the target's hidden states, with a DFlash model that was made for it."""
        return cls(recipes.dflash(draft))

    @classmethod
    def shared_states(cls, draft: PreTrainedModel) -> Self:
        """Draft from a Gemma target's own keys and values with a Gemma 4 assistant; proposes its likeliest tokens."""
        return cls(recipes.shared_states(draft))

    def begin_response(self, target: Any, length: DraftLength) -> None:
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
            ValueError: for a recipe before `begin_response`, for a generator made for one response that is to serve a
                second one, and for scores that are not as wide as the target's vocabulary.
        """
        limit = limit if self.max_length is None else min(limit, self.max_length - len(token_ids))
        if limit <= 0 or (self._known is not None and max(token_ids) >= self._known):
            return Proposal([], None)
        ids = torch.tensor([token_ids], device=None if self._target is None else self._target.device)
        kept = self._kept(token_ids)
        if self._generator is None or kept is None:
            self._generator = self._begin(ids)
        elif self._proposed:
            # of the target's scores, only the number of rows is ever looked at
            self._generator.update_candidate_strategy(ids, ids.new_empty(1, len(self._proposed) + 1, 0), kept)
        self._processor.begin(token_ids, to_probs)
        recipes.limit(self._generator, len(token_ids), limit)
        with _draws_from(generator, ids.device), _layers_put_back(self._generator):
            candidate_ids, scores = self._ask(ids, kept)
        self._sequence = list(token_ids)
        self._proposed = candidate_ids[0, len(token_ids) :].tolist()[:limit]
        if scores is None or not self._proposed or not recipes.is_sampled(self._generator):
            return Proposal(self._proposed, None)
        return Proposal(self._proposed, self._rows(scores[0, : len(self._proposed)].to(ids.device)))

    def _kept(self, token_ids: list[int]) -> int | None:
        """Return how many of the last candidates were kept, or None where a new response begins."""
        count = len(token_ids) - len(self._sequence) - 1  # each step adds one token to those it keeps
        if self._generator is None or not 0 <= count <= len(self._proposed):
            return None
        return count if token_ids[:-1] == self._sequence + self._proposed[:count] else None

    def _begin(self, ids: Tensor) -> CandidateGenerator:
        if not isinstance(self._source, CandidateGenerator):
            if self._target is None:
                raise ValueError("the target is missing: call begin_response with it first, as the decoding loop does")
            generator = self._source(self._target.model, ids, self._processor)
        else:
            generator = self._source
            if self._served and not isinstance(generator, PromptLookupCandidateGenerator):
                raise ValueError(
                    f"a {type(generator).__name__} serves one response: pass a recipe that makes one for each"
                )
            self._served = True
        if needs_model_outputs(generator):
            if self._target is None:
                raise ValueError(f"{type(generator).__name__} needs a target: call begin_response with it first")
            self._target.reset()  # it is to have outputs for the whole prompt
            self._target.use_extra_inputs(dict(generator.model_kwargs_overrides))
        return generator

    def _ask(self, ids: Tensor, kept: int | None) -> tuple[Tensor, Tensor | None]:
        assert self._generator is not None
        seen: dict[str, Any] = {}
        if needs_model_outputs(self._generator) and self._target is not None:
            positions = torch.arange(ids.shape[1], device=ids.device).unsqueeze(0)
            seen = {
                "model_kwargs": {"position_ids": positions, "attention_mask": None},
                "model_outputs": self._target.outputs,
                "is_first_iteration": kept is None,
                "n_last_matches": kept or 0,
            }
        try:
            return candidates_of(self._generator, ids, first=kept is None, **seen)  # type: ignore[no-any-return]
        except recipes.NoRoomError:
            return ids, None

    def _rows(self, scores: Tensor) -> Tensor:
        if self._processor.vocabulary is None or scores.shape[-1] == self._processor.vocabulary:
            return scores.float().softmax(-1)
        if isinstance(self._source, CandidateGenerator):
            raise ValueError(
                f"the target's vocabulary has {self._processor.vocabulary} tokens, "
                f"but {type(self._source).__name__} scores {scores.shape[-1]}"
            )
        return fit_width(scores.float().softmax(-1), self._processor.vocabulary, 0.0)


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


@contextmanager
def _layers_put_back(generator: CandidateGenerator) -> Iterator[None]:
    """Restore the number of layers that an early exit lowers, also after an error, where transformers does not."""
    if not isinstance(generator, EarlyExitCandidateGenerator):
        yield
        return
    model = generator.assistant_model
    config = getattr(model, model.base_model_prefix).config
    layers = config.num_hidden_layers
    try:
        yield
    finally:
        config.num_hidden_layers = layers
