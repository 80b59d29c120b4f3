"""vLLM's own V1 sampler with chosen logits, drafts and parameters, without an engine around it."""

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace

import torch
from torch import Tensor
from vllm.platforms import current_platform
from vllm.sampling_params import SamplingParams
from vllm.v1.sample import logits_processor, rejection_sampler
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessors
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.sampler import Sampler
from vllm.v1.spec_decode.metadata import SpecDecodeMetadata

from cactus_decoding.core.policy.vocabulary import Vocabulary
from cactus_decoding.engines.vllm.extra_args import ServerConfig
from cactus_decoding.engines.vllm.plugin import register
from cactus_decoding.engines.vllm.v1 import BatchRules, batch_rules

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Cut:
    """Temperature, top-k and top-p; 0 and 1 leave everything."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0


def prepare() -> None:
    """Do what a CPU worker does before it samples, the plug-in included."""
    register()
    current_platform.register_triton_kernel_overrides()


def processors(
    additional_config: dict | None = None, max_num_seqs: int = 1 << 20, words: Sequence[str] | None = None
) -> LogitsProcessors:
    """Return what `build_logitsprocs`, with the plug-in, builds for a speculating server; words: what tokens say."""
    config = SimpleNamespace(
        speculative_config=SimpleNamespace(rejection_sample_method="standard", num_speculative_tokens=4),
        additional_config=additional_config or {"acceptance_metrics": False},
        scheduler_config=SimpleNamespace(max_num_seqs=max_num_seqs),
        model_config=SimpleNamespace(skip_tokenizer_init=True),
    )
    built = logits_processor.build_logitsprocs(config, CPU, False, False)
    if words is not None:
        rules = BatchRules(ServerConfig.of(config), CPU, max_num_seqs, None, Vocabulary(tuple(words)))
        built.argmax_invariant[-1] = rules
    return built


def params(rule: str | None, temperature: float = 1.0, **extra) -> SamplingParams:
    asked = extra | ({} if rule is None else {"acceptance_rule": rule})
    return SamplingParams(temperature=temperature, extra_args=asked or None)


def admit(logitsprocs: LogitsProcessors, requests: Sequence[SamplingParams]) -> None:
    """Put requests into a batch at indices 0, 1, ..."""
    added = [(index, request, [1], []) for index, request in enumerate(requests)]
    for processor in logitsprocs.argmax_invariant:
        processor.update_state(BatchUpdate(len(requests), removed=[], added=added, moved=[]))


def metadata(
    logitsprocs: LogitsProcessors,
    cuts: Sequence[Cut],
    generators: dict[int, torch.Generator] | None = None,
    max_num_logprobs: int | None = None,
) -> SamplingMetadata:
    empty = torch.tensor([])
    temperature = torch.tensor([cut.temperature for cut in cuts])
    top_k = torch.tensor([cut.top_k or 1 << 30 for cut in cuts], dtype=torch.int32)
    top_p = torch.tensor([cut.top_p for cut in cuts])
    return SamplingMetadata(
        temperature=temperature,
        all_greedy=bool((temperature == 0).all()),
        all_random=bool((temperature > 0).all()),
        top_p=top_p if (top_p < 1).any() else None,
        top_k=top_k if any(cut.top_k for cut in cuts) else None,
        generators=generators or {},
        max_num_logprobs=max_num_logprobs,
        no_penalties=True,
        prompt_token_ids=None,
        frequency_penalties=empty,
        presence_penalties=empty,
        repetition_penalties=empty,
        output_token_ids=[[] for _ in cuts],
        allowed_token_ids_mask=None,
        bad_words_token_ids={},
        logitsprocs=logitsprocs,
    )


def sample(logits: Tensor, draft_probs: Tensor | None, draft_token_ids: Tensor, sampling: SamplingMetadata) -> Tensor:
    """Return the tokens that vLLM's sampler emits, ``[requests, k + 1]``, -1 after the last.

    Logits are the target's, ``[requests, k + 1, vocabulary]``, the draft's rows and tokens ``[requests, k]``.
    """
    return run(logits, draft_probs, draft_token_ids, sampling).sampled_token_ids


def run(logits: Tensor, draft_probs: Tensor | None, draft_token_ids: Tensor, sampling: SamplingMetadata):
    requests, rows, vocabulary = logits.shape
    rows_of = torch.arange(requests * rows).view(requests, rows)
    counts = torch.arange(1, requests + 1, dtype=torch.int32)
    step = SpecDecodeMetadata(
        draft_token_ids=draft_token_ids.flatten().to(torch.int32),
        num_draft_tokens=[rows - 1] * requests,
        cu_num_draft_tokens=counts * (rows - 1),
        cu_num_sampled_tokens=counts * rows,
        target_logits_indices=rows_of[:, :-1].flatten(),
        bonus_logits_indices=rows_of[:, -1],
        logits_indices=rows_of.flatten(),
    )
    flat = None if draft_probs is None else draft_probs.reshape(-1, vocabulary).contiguous()
    top_k = sampling.top_k
    if top_k is not None:
        sampling.top_k = top_k.clamp(max=vocabulary)
    return rejection_sampler.RejectionSampler(Sampler())(step, flat, logits.reshape(-1, vocabulary), sampling)


def spent(sampling: SamplingMetadata) -> Tensor:
    rules = batch_rules(sampling)
    slots = [rules.requests[index].meter_slot for index in sorted(rules.requests)]
    return rules.meter.spent[torch.tensor(slots)]
