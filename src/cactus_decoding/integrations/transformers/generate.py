"""Speculative decoding as the `custom_generate` of Hugging Face transformers."""

from __future__ import annotations

import time
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    LogitsProcessorList,
    PreTrainedModel,
    StoppingCriteriaList,
)
from transformers.generation import GenerateDecoderOnlyOutput
from transformers.generation.candidate_generator import CandidateGenerator
from transformers.generation.streamers import BaseStreamer

from cactus_decoding.budgets.budget import Budget
from cactus_decoding.drafting.candidates import CandidateGeneratorDrafter
from cactus_decoding.drafting.model import ModelDrafter
from cactus_decoding.drafting.ngram import NgramDrafter
from cactus_decoding.generation.loop import decode
from cactus_decoding.generation.metrics import Metrics
from cactus_decoding.generation.request import Request
from cactus_decoding.integrations.transformers.request import (
    ProcessedProbs,
    StoppingCheck,
    check_call,
    left_padding,
    named_arguments_of_generate,
    random_source,
    sampling_of,
)
from cactus_decoding.models.cached import CachedModel, ForwardName, check_fits, vocabulary_size
from cactus_decoding.sampling.params import SamplingParams, as_logits_to_probs
from cactus_decoding.types import AcceptanceRule, Drafter, DraftLength, LogitsToProbs

_DEFAULT_NUM_SPECULATIVE_TOKENS = 6


def speculative_generate(
    model: PreTrainedModel,
    input_ids: Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: GenerationConfig,
    *,
    rule: AcceptanceRule | str = "lossless",
    budget: Budget | float | None = None,
    verification: str = "token",
    num_speculative_tokens: DraftLength | int | str | None = None,
    assistant_model: PreTrainedModel | None = None,
    drafter: Drafter | CandidateGenerator | None = None,
    generator: torch.Generator | None = None,
    seed: int | None = None,
    metrics: Metrics | None = None,
    forward: ForwardName = "auto",
    streamer: BaseStreamer | None = None,
    **model_kwargs: Any,
) -> Tensor | GenerateDecoderOnlyOutput:
    """Draft and verify inside `generate`: ``model.generate(**inputs, custom_generate=speculative_generate, ...)``.

    `generate` prepares the first five arguments and ``model_kwargs``; the others are given to it by name, or fixed with
    `functools.partial`. Its generation config is honoured: ``do_sample`` (False is temperature 0), lengths, ends of
    sequence, every setting that makes a logits processor or a stopping criterion, and ``return_dict_in_generate``.
    Logits processors must be functions of their arguments: they see rows of the draft, and rows that are rejected.
    Stop strings go in as ``stopping_criteria=[StopStringCriteria(tokenizer, [...])]``, because `generate` itself
    accepts no ``stop_strings`` next to a callable. The target's context window limits the length too.

    Args:
        model: the target.
        input_ids: one prompt, ``[1, n]``, perhaps padded on the left.
        logits_processor: applied to the target's and the draft's rows, each with the tokens before it.
        stopping_criteria: asked after every token, in order.
        generation_config: as prepared by `generate`.
        rule: an acceptance rule or its spelling.
        budget: how far the response's distribution may move, a `Budget` or its nats; with None nobody measures.
        verification: ``token`` for one proposal after another, ``block`` for all of a step jointly.
        num_speculative_tokens: proposals per step, 0 or more, or a draft length that chooses their number, or its
            spelling; 6 if None, or ``prompt_lookup_num_tokens``.
        assistant_model: the draft, with the target's vocabulary.
        drafter: proposes instead of a draft model; a `Drafter` or one of transformers' candidate generators. Without
            either, the generation config may ask for ``prompt_lookup_num_tokens``, ``assistant_early_exit`` or
            ``use_mtp``.
        generator: source of the random numbers, on the model's device; torch's default one if None.
        seed: makes a generator.
        metrics: counts and seconds are added to this object.
        forward: how the target is read: ``transformers`` for its own forward pass, ``lean`` for this package's faster
            one or an error, ``auto`` for the faster one wherever that computes the same.
        streamer: gets tokens one by one.
        model_kwargs: what `generate` adds for a text-only model.

    Returns:
        The prompt and the response, ``[1, n + new]``, or with ``return_dict_in_generate`` an output with these
        ``sequences`` and nothing else.

    Raises:
        TypeError: for an argument of the wrong type.
        ValueError: before any work, for what is out of range or not supported: a batch, several beams or sequences, a
            cache of the caller's, inputs other than text, encoder-decoder or recurrent models, no draft or two, another
            vocabulary, a context window without room, requested scores or hidden states, processors with a memory.

    Sources: Leviathan et al. (arXiv 2211.17192); Hao and Mou (arXiv 2604.04987).

    Example:
        >>> from cactus_decoding import load_pair
        >>> pair = load_pair()
        >>> inputs = pair.tokenizer("Question:", return_tensors="pt", return_token_type_ids=False)
        >>> pair.target.model.generate(
        ...     **inputs, custom_generate=speculative_generate, drafter=NgramDrafter(), rule="cactus:delta=1.0",
        ...     do_sample=True, max_new_tokens=4, seed=0).shape[1] - inputs.input_ids.shape[1]
        4
    """
    named = named_arguments_of_generate(model)
    streamer = named.get("streamer") if streamer is None else streamer
    assistant_model = named.get("assistant_model") if assistant_model is None else assistant_model
    if named.get("synced_gpus"):
        raise ValueError("synced_gpus is not supported: steps of different processes take different times")
    if num_speculative_tokens is None:
        num_speculative_tokens = generation_config.prompt_lookup_num_tokens or _DEFAULT_NUM_SPECULATIVE_TOKENS
    plain = sampling_of(logits_processor, generation_config)
    request = Request(
        rule,
        budget,
        verification,
        num_speculative_tokens,
        plain or SamplingParams(temperature=1.0 if generation_config.do_sample else 0.0),
        seed=seed,
    )
    check_call(model, input_ids, logits_processor, generation_config, model_kwargs)

    padding = left_padding(input_ids, model_kwargs)
    prompt_ids = input_ids[0, padding:].tolist()
    target, proposals = CachedModel(model, forward), request.num_speculative_tokens.max_draft_tokens
    check_fits("target", target.max_length, len(prompt_ids), proposals)
    proposer: Drafter = NgramDrafter()
    if proposals:
        proposer = _choose_drafter(model, generation_config, assistant_model, drafter)
        check_fits("draft", proposer.max_length, len(prompt_ids), proposals)
    request.check_drafter(proposer)
    stop = StoppingCheck(stopping_criteria, generation_config, input_ids, padding)

    to_probs: LogitsToProbs = ProcessedProbs(logits_processor, generation_config, input_ids, padding)
    if plain is not None:
        to_probs = as_logits_to_probs(plain)
    # without sampling there is neither temperature nor truncation among the processors
    untempered = ProcessedProbs(logits_processor, generation_config, input_ids, padding, greedy=False)
    outcomes = decode(
        target,
        proposer,
        prompt_ids,
        request.verifier(to_probs, untempered, plain),
        to_probs,
        length=request.num_speculative_tokens,
        max_length=min(stop.max_length, target.max_length or stop.max_length),
        stopping_criteria=stop,
        generator=random_source(generator, seed, target.device),
    )
    response: list[int] = []
    start = time.perf_counter()
    for outcome in outcomes:
        response += outcome.token_ids
        if streamer is not None:
            for token in outcome.token_ids:
                streamer.put(torch.tensor([token]))
        if metrics is not None:
            _add(metrics, Metrics.of(outcome))
    if metrics is not None:
        metrics.seconds += time.perf_counter() - start
    if streamer is not None:
        streamer.end()
    sequences = torch.cat([input_ids, input_ids.new_tensor([response])], dim=1)
    return GenerateDecoderOnlyOutput(sequences=sequences) if generation_config.return_dict_in_generate else sequences


def _choose_drafter(
    model: PreTrainedModel,
    config: GenerationConfig,
    assistant_model: PreTrainedModel | None,
    drafter: Drafter | CandidateGenerator | None,
) -> Drafter:
    """Return what the caller wants to draft with: what it names explicitly goes before the generation config."""
    if drafter is not None and assistant_model is not None:
        raise ValueError("assistant_model and drafter exclude each other: give one of them")
    if isinstance(drafter, CandidateGenerator):
        return CandidateGeneratorDrafter(drafter)
    if drafter is not None:
        if isinstance(drafter, type) or not isinstance(drafter, Drafter):
            raise TypeError(
                f"drafter must be a Drafter (a subclass of cactus_decoding.Drafter) or a candidate generator, but is "
                f"{drafter!r}"
            )
        if isinstance(drafter, ModelDrafter):
            _check_vocabulary(model, drafter.vocabulary)
        return drafter
    if assistant_model is not None:
        return _drafter_of(model, config, assistant_model)
    if config.assistant_early_exit is not None:
        return CandidateGeneratorDrafter.early_exit(config.assistant_early_exit)
    if config.prompt_lookup_num_tokens is not None:
        return NgramDrafter(max_ngram_size=config.max_matching_ngram_size or 2)
    if getattr(config, "use_mtp", None):
        return CandidateGeneratorDrafter.multi_token_prediction()
    raise ValueError(
        "a draft is missing: give assistant_model, drafter, prompt_lookup_num_tokens, assistant_early_exit or use_mtp, "
        "or num_speculative_tokens=0 to sample without one"
    )


def _drafter_of(model: PreTrainedModel, config: GenerationConfig, assistant_model: PreTrainedModel) -> Drafter:
    """Return the drafter that goes with a kind of draft model."""
    if not isinstance(assistant_model, PreTrainedModel):
        raise TypeError(f"assistant_model must be a transformers model, but is {assistant_model!r}")
    if assistant_model.device != model.device:
        raise ValueError(
            f"assistant_model must be on the target's device {model.device}, but is on {assistant_model.device}"
        )
    if getattr(config, "speculation_type", None) == "dflash":
        return CandidateGeneratorDrafter.dflash(assistant_model)
    if type(assistant_model).__name__.startswith(("Gemma4Assistant", "Gemma4UnifiedAssistant")):
        return CandidateGeneratorDrafter.shared_states(assistant_model)
    draft = ModelDrafter(assistant_model)
    _check_vocabulary(model, draft.vocabulary)
    return draft


def _check_vocabulary(model: PreTrainedModel, width: int) -> None:
    if width != vocabulary_size(model):
        raise ValueError(
            f"the target's vocabulary has {vocabulary_size(model)} tokens, but the draft's has {width}; for the same "
            f"tokens with another padding, pass drafter=ModelDrafter(draft, {vocabulary_size(model)}); for other "
            "tokens, drafter=CandidateGeneratorDrafter.cross_tokenizer(draft, target_tokenizer, draft_tokenizer)"
        )


def _add(metrics: Metrics, counts: Metrics) -> None:
    """Add counts to the caller's own object."""
    for field in fields(Metrics):
        setattr(metrics, field.name, getattr(metrics, field.name) + getattr(counts, field.name))
