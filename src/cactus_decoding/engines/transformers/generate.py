"""Speculative decoding as the `custom_generate` of Hugging Face transformers."""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    LogitsProcessorList,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    StoppingCriteriaList,
)
from transformers.generation import GenerateDecoderOnlyOutput
from transformers.generation.candidate_generator import CandidateGenerator
from transformers.generation.streamers import BaseStreamer

from cactus_decoding.core.checks import check_generator, short_repr
from cactus_decoding.core.drafting.lookup import NgramDrafter
from cactus_decoding.core.drafting.registry import proposals_of
from cactus_decoding.core.drafting.trees.shape import TreeShape
from cactus_decoding.core.gone import replacement
from cactus_decoding.core.metrics import Metrics
from cactus_decoding.core.pair import Models
from cactus_decoding.core.request import DECODING, Request
from cactus_decoding.core.response import begin
from cactus_decoding.core.sampling.params import SamplingParams
from cactus_decoding.core.types import Drafter
from cactus_decoding.engines.transformers.assistance import ASSISTANT_SETTINGS, Assistance
from cactus_decoding.engines.transformers.cached_model import CachedModel
from cactus_decoding.engines.transformers.compatibility import (
    cache_of,
    is_spread_over_processes,
    named_arguments_of_generate,
)
from cactus_decoding.engines.transformers.generate_arguments import (
    OWN_CACHE,
    ProcessedProbs,
    StoppingCheck,
    check_call,
    left_padding,
    position_limit,
    read_in_blocks,
    sampling_of,
    with_stop_strings,
)

ASKED = ("budget", *DECODING)  # what a call may ask for: settings of a request


def speculative_generate(
    model: PreTrainedModel,
    input_ids: Tensor | None = None,
    logits_processor: LogitsProcessorList | None = None,
    stopping_criteria: StoppingCriteriaList | None = None,
    generation_config: GenerationConfig | None = None,
    *,
    assistant_model: PreTrainedModel | None = None,
    drafter: Drafter | CandidateGenerator | None = None,
    generator: torch.Generator | None = None,
    seed: int | None = None,
    metrics: Metrics | None = None,
    streamer: BaseStreamer | None = None,
    stop_strings: str | Sequence[str] | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    assistant_tokenizer: PreTrainedTokenizerBase | None = None,
    **model_kwargs: Any,
) -> Tensor | GenerateDecoderOnlyOutput:
    """Draft and verify inside `generate`: ``model.generate(**inputs, custom_generate=speculative_generate, ...)``.

    Called directly, ``speculative_generate(model, input_ids, ...)``, it calls `generate` itself, with everything that
    `generate` takes, tokenizers and stop strings included.
    `generate` prepares the first five arguments and ``model_kwargs``; the others are given to it by name, or bound with
    `functools.partial`. Its generation config is honoured: ``do_sample`` (False is temperature 0), lengths, ends of
    sequence, every setting that makes a logits processor or a stopping criterion, ``return_dict_in_generate``, and what
    transformers' assisted generation is told (``num_assistant_tokens`` and its schedule,
    ``assistant_confidence_threshold``, ``prompt_lookup_num_tokens`` and so on). What has no effect here is refused.
    Logits processors must be functions of their arguments: they see rows of the draft, and rows that are rejected.
    The response goes on beyond the target's context window where that of `generate` does; where positions end, it
    ends with a warning.

    Args:
        model: the target.
        input_ids: one prompt, ``[1, n]``, perhaps padded on the left.
        logits_processor: applied to the target's and the draft's rows, each with the tokens before it.
        stopping_criteria: asked after every token, in order.
        generation_config: as prepared by `generate`.
        assistant_model: the draft, with the target's vocabulary unless there is an ``assistant_tokenizer``.
        drafter: proposes instead of a draft model; a `Drafter` or one of transformers' candidate generators. Without
            either, the generation config may ask for ``prompt_lookup_num_tokens``, ``assistant_early_exit`` or
            ``use_mtp``.
        generator: source of the random numbers, on the model's device; torch's default one if None.
        seed: makes a generator.
        metrics: counts and seconds are added to this object.
        streamer: gets tokens one by one.
        stop_strings: end the response, as in `generate`; the tokenizer must be bound.
        tokenizer: the target's, for ``protect``, ``relax_within``, stop strings and a draft with other
            tokens. `generate` keeps both tokenizers from a callable, so bind them:
            ``partial(speculative_generate, tokenizer=tokenizer)``, or call this function directly.
        assistant_tokenizer: that of a draft with other tokens.
        model_kwargs: what `generate` adds for a text-only model, and by the names of `Request.from_dict` what is asked
            of the response: ``rule``, ``budget``, ``num_speculative_tokens`` or ``tree``, ``verification``, and the
            settings of its relaxation policy. If neither of the lengths is given, ``num_assistant_tokens`` or
            ``prompt_lookup_num_tokens`` count where they are set, else 6.

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
    if input_ids is None or logits_processor is None or stopping_criteria is None or generation_config is None:
        given = {
            name: value for name, value in dict(locals()).items() if value is not None
        }  # there is nothing else yet
        return generate_speculatively(**given.pop("model_kwargs"), **given)
    if metrics is not None and not isinstance(metrics, Metrics):
        raise TypeError(f"metrics must be a Metrics to add to, but is {short_repr(metrics)}")
    settings = {name: model_kwargs.pop(name) for name in ASKED if name in model_kwargs}
    named = named_arguments_of_generate(model)
    named |= {name: model_kwargs.pop(name) for name in ASSISTANT_SETTINGS if name in model_kwargs}
    streamer = named.get("streamer") if streamer is None else streamer
    assistant_model = named.get("assistant_model") if assistant_model is None else assistant_model
    if cache_of(named) is not None:
        raise ValueError(OWN_CACHE)
    check_call(model, input_ids, logits_processor, generation_config, model_kwargs)
    check_not_synced(model, named.get("synced_gpus"))
    stopping_criteria = with_stop_strings(stopping_criteria, stop_strings, tokenizer)
    padding = left_padding(input_ids, model_kwargs)
    prompt_ids = input_ids[0, padding:].tolist()
    stop = StoppingCheck(stopping_criteria, generation_config, input_ids, padding)
    assistance = Assistance(model, generation_config, named, assistant_model, drafter, tokenizer, assistant_tokenizer)
    plain = sampling_of(logits_processor, generation_config)
    rows = ProcessedProbs(logits_processor, generation_config, input_ids, padding, plain)
    own = assistance.draft_length(
        proposals_of(settings.pop("num_speculative_tokens", None), settings.pop("tree", None)),
        stop.max_length - len(prompt_ids),
    )
    settings["tree" if isinstance(own, TreeShape) else "num_speculative_tokens"] = own
    settings |= vars(plain or SamplingParams(rows.temperature)) | {"seed": seed, "stop": stop.strings}
    request = Request.from_dict(settings | {"max_new_tokens": max(stop.max_length - len(prompt_ids), 1)})
    target, reach = CachedModel(model), position_limit(model, len(prompt_ids))
    proposer = assistance.choose_drafter() if request.draft_length.max_draft_tokens else NgramDrafter()
    response = begin(
        Models(target, read_in_blocks(model, proposer, len(prompt_ids)), tokenizer),
        request,
        prompt_ids,
        sampling=rows,
        stop=stop,
        generator=random_source(generator, seed, target.device),
        max_length=reach.end or sys.maxsize,
    )
    try:
        for outcome in response:
            if streamer is not None:
                for token in outcome.token_ids:
                    streamer.put(torch.tensor([token]))
    finally:
        if metrics is not None:
            vars(metrics).update(vars(metrics + response.metrics))  # the caller's own object
    assistance.remember(request.draft_length)
    if streamer is not None:
        streamer.end()
    if response.finish_reason == "length" and len(prompt_ids) + len(response.token_ids) < stop.max_length:
        warnings.warn(f"the response ends at the target's {reach.end} positions, {reach.cause}", stacklevel=2)
    sequences = torch.cat([input_ids, input_ids.new_tensor([response.token_ids])], dim=1)
    return GenerateDecoderOnlyOutput(sequences=sequences) if generation_config.return_dict_in_generate else sequences


def generate_speculatively(model: PreTrainedModel, **arguments: Any) -> Tensor | GenerateDecoderOnlyOutput:
    """Do what ``model.generate(..., custom_generate=speculative_generate)`` does, tokenizers and stop strings included.

    `generate` keeps ``tokenizer`` and ``assistant_tokenizer`` from a callable, and so cannot read stop strings next to
    one. A folder gets everything. Settings that `generate` would act on before anything is decoded are refused.
    """
    for name in arguments:
        if gone := replacement(name, shared=True):  # `generate` would say no more than that the model does not use it
            raise TypeError(f"speculative_generate has no {name!r}{gone}")
    configs = [arguments.get("generation_config"), model.generation_config]

    def setting(name: str) -> Any:
        values = [arguments.get(name), *(getattr(config, name, None) for config in configs)]
        return next((value for value in values if value is not None), None)

    if setting("token_healing"):
        raise ValueError("token_healing is not supported: heal the prompt first, by model.heal_tokens(ids, tokenizer)")
    if setting("cache_implementation") == "paged":
        raise ValueError("cache_implementation must be None or 'dynamic', but is 'paged'")
    if (stop_strings := setting("stop_strings")) is not None:
        arguments["stop_strings"] = stop_strings
    own: dict[str, Any] = {name: arguments.pop(name) for name in _OWN if name in arguments}
    if stop_strings is not None:
        arguments["stop_strings"] = None  # else `generate` asks for the tokenizer that it keeps from a callable

    def bound(*prepared: Any, **given: Any) -> Any:
        """Take what is bound: `generate` hands a callable what its signature names, and would keep the rest."""
        return speculative_generate(*prepared, **{**given, **own})

    return model.generate(**arguments, custom_generate=bound)


def _with_settings(signature: inspect.Signature) -> inspect.Signature:
    """Return a signature that names the settings: `generate` keeps from a callable what its signature does not."""
    *own, others = signature.parameters.values()
    asked = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in ASKED]
    return signature.replace(parameters=[*own, *asked, others])


speculative_generate.__signature__ = _with_settings(inspect.signature(speculative_generate))  # type: ignore[attr-defined]


_PREPARED = {"model", "input_ids", "logits_processor", "stopping_criteria", "generation_config", "model_kwargs"}
# `generate` has these two as well, and gives a streamer the prompt
_OWN = inspect.signature(speculative_generate).parameters.keys() - _PREPARED - {"assistant_model", "streamer"}


def check_not_synced(model: PreTrainedModel, synced_gpus: bool | None) -> None:
    """Raise `ValueError` where every process must run the target as often as the others.

    With ``synced_gpus=None``, `generate` sets it itself where weights are spread over processes, and tells no callable.
    """
    if synced_gpus is None:
        spread, group = is_spread_over_processes(model), torch.distributed
        synced_gpus = spread and group.is_available() and group.is_initialized() and group.get_world_size() > 1
        cause = ", which `generate` sets for a model whose weights are spread over processes (FSDP, ZeRO-3),"
    else:
        cause = ""
    if synced_gpus:
        raise ValueError(f"synced_gpus{cause} is not supported: processes would take different numbers of steps")


def random_source(
    generator: torch.Generator | None, seed: int | None, device: torch.device
) -> torch.Generator | Literal["seed"] | None:
    """Return the generator to draw from, as `begin` takes it; None is torch's default one, as `generate` has it."""
    if seed is None:
        check_generator(generator, device)
        return generator
    if generator is not None:
        raise ValueError("generator and seed exclude each other: give one of them")
    return "seed"
