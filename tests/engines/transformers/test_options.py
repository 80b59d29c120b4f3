"""Every option of `generate` is honoured, with the answer of `generate` itself, or refused by name: none is ignored."""

import inspect
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from support.tables import all_of
from support.tiny_architectures import NO_SPECIAL_TOKENS, letter_tokenizer, tiny_dflash, tiny_gpt2, tiny_qwen2
from support.tiny_models import tiny_llama
from support.versions import at_least
from transformers import (
    CompileConfig,
    DynamicCache,
    GenerationConfig,
    GenerationMixin,
    LogitsProcessorList,
    MambaConfig,
    MambaForCausalLM,
    MaxLengthCriteria,
    SynthIDTextWatermarkingConfig,
    T5Config,
    T5ForConditionalGeneration,
    WatermarkingConfig,
    XLNetConfig,
    XLNetLMHeadModel,
)
from transformers.generation import logits_process
from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

from cactus_decoding import Drafter, Metrics, ModelDrafter, NgramDrafter, Proposal, speculative_generate
from cactus_decoding.engines.transformers.compatibility import default_cache_argument

PROMPT = torch.tensor([[1, 2, 3]])
LETTERS = letter_tokenizer("abcdefgh")
ENDS = {"eos_token_id": [4, 6]}
BASE = {"do_sample": False, "max_new_tokens": 20, "pad_token_id": 0}


@dataclass(frozen=True)
class Same:
    """Greedy answers are those of `generate` with the same option; without it, the answer must be another one."""

    given: dict[str, Any]
    without: dict[str, Any] | None = None


@dataclass(frozen=True)
class Rows:
    """With sampling, rows are those of `generate`'s own processors."""

    given: dict[str, Any]


@dataclass(frozen=True)
class Idle:
    """`generate` itself does nothing with it for one greedy sequence, so the answer stays as it is."""

    given: dict[str, Any]


@dataclass(frozen=True)
class Refused:
    """An error says what is not supported, before the target runs."""

    given: dict[str, Any]
    message: str
    error: type[Exception] = ValueError


Case = Same | Rows | Idle | Refused
RETURNED = {"return_dict_in_generate": True}
MODEL, WIDE = {"assistant_model": tiny_llama(1)}, {"assistant_model": tiny_llama(1, 11)}
LOOKUP, NGRAM, TREE = {"prompt_lookup_num_tokens": 3}, {"drafter": NgramDrafter()}, {"tree": "static=3.2.1"}
GPT2 = {"model": "gpt2"}
DFLASH = {"speculation_type": "dflash", "assistant_confidence_threshold": 0.5}
CUSTOM = "custom_generate"

FIELDS: dict[str, list[Case]] = {
    # lengths and ends
    "max_length": [Same({"max_length": 9, "max_new_tokens": None}, {})],
    "max_new_tokens": [Same({"max_new_tokens": 7}, {})],
    "min_length": [Same({"min_length": 15, **ENDS}, ENDS)],
    "min_new_tokens": [Same({"min_new_tokens": 9, **ENDS}, ENDS)],
    "early_stopping": [Idle({"early_stopping": True})],
    "max_time": [Same({"max_time": 0.0}, {}), Same({"max_time": 100.0})],
    "stop_strings": [Refused({"stop_strings": ["a"]}, "stop_strings need the target's tokenizer")],
    "pad_token_id": [
        Same({"pad_token_id": 7, **ENDS}),
        Refused({"pad_token_id": 2, **MODEL}, "where none is given, `generate` takes pad tokens for padding"),
    ],
    "bos_token_id": [Idle({"bos_token_id": 1}), Same({"bos_token_id": 1, "inputs": None})],
    "eos_token_id": [Same({"eos_token_id": 4}, {}), Same({"eos_token_id": [4, 6]}, {})],
    "decoder_start_token_id": [Idle({"decoder_start_token_id": 1})],
    # strategies
    "do_sample": [Rows({"top_k": 0})],
    "num_beams": [
        Refused({"num_beams": 2}, "one beam, but not beam_search"),
        Refused({"num_beams": 2, "do_sample": True}, "one beam, but not beam_sample"),
    ],
    "num_return_sequences": [Refused({"num_return_sequences": 2, "do_sample": True}, "num_return_sequences must be 1")],
    "length_penalty": [Idle({"length_penalty": 2.0})],
    "num_beam_groups": [Refused({"num_beam_groups": 2, "num_beams": 2}, "one beam, but not group_beam_search")],
    "diversity_penalty": [Idle({"diversity_penalty": 0.5})],
    "constraints": [Refused({"constraints": [[1]], "num_beams": 2}, "one beam, but not constrained_beam_search")],
    "force_words_ids": [Refused({"force_words_ids": [[1]], "num_beams": 2}, "one beam, but not constrained_beam")],
    "penalty_alpha": [Refused({"penalty_alpha": 0.6, "top_k": 4}, "one beam, but not contrastive_search")],
    "dola_layers": [Refused({"dola_layers": "low"}, "one beam, but not dola_generation")],
    "low_memory": [Idle({"low_memory": True})],
    "token_healing": [Refused({"token_healing": True}, "you must pass the model's tokenizer to the `tokenizer`")],
    # processors
    "temperature": [Rows({"temperature": 0.6})],
    "top_k": [Rows({"top_k": 3})],
    "top_p": [Rows({"top_p": 0.7}), Rows({"top_p": 0.7, "top_k": 5, "temperature": 1.4})],
    "min_p": [Rows({"min_p": 0.2})],
    "top_h": [Rows({"top_h": 0.4})],
    "typical_p": [Rows({"typical_p": 0.6})],
    "epsilon_cutoff": [Rows({"epsilon_cutoff": 0.1})],
    "eta_cutoff": [Rows({"eta_cutoff": 0.1})],
    "repetition_penalty": [Same({"repetition_penalty": 1.7}, {}), Rows({"repetition_penalty": 1.7})],
    "encoder_repetition_penalty": [Same({"encoder_repetition_penalty": 3.0}, {})],
    "no_repeat_ngram_size": [Same({"no_repeat_ngram_size": 2}, {}), Rows({"no_repeat_ngram_size": 1})],
    "encoder_no_repeat_ngram_size": [Same({"encoder_no_repeat_ngram_size": 1}, {})],
    "bad_words_ids": [Same({"bad_words_ids": [[5], [6, 4], [2]]}, {}), Rows({"bad_words_ids": [[3, 2], [5]]})],
    "renormalize_logits": [Idle({"renormalize_logits": True}), Rows({"renormalize_logits": True, "top_k": 4})],
    "forced_bos_token_id": [Same({"forced_bos_token_id": 5, "inputs": PROMPT[:, :1]}, {"inputs": PROMPT[:, :1]})],
    "forced_eos_token_id": [Same({"forced_eos_token_id": 2}, {}), Same({"forced_eos_token_id": 2, **ENDS})],
    "remove_invalid_values": [Idle({"remove_invalid_values": True})],
    "exponential_decay_length_penalty": [Same({"exponential_decay_length_penalty": (1, 9.0), "eos_token_id": 7}, {})],
    "suppress_tokens": [Same({"suppress_tokens": [0, 2, 5]}, {}), Rows({"suppress_tokens": [0, 2]})],
    "begin_suppress_tokens": [Same({"begin_suppress_tokens": [5]}, {})],
    "sequence_bias": [
        Same({"sequence_bias": [[[2], 30.0], [[5, 1], -9.0]]}, {}),
        Rows({"sequence_bias": [[[2], 1.0]]}),
    ],
    "guidance_scale": [
        Refused({"guidance_scale": 2.0}, "ClassifierFreeGuidanceLogitsProcessor remembers earlier calls"),
        Idle({"guidance_scale": 1.0}),
    ],
    "watermarking_config": [
        Same({"watermarking_config": WatermarkingConfig(bias=9.0)}, {}),
        Rows({"watermarking_config": WatermarkingConfig(bias=2.0)}),
        Refused(
            {"watermarking_config": SynthIDTextWatermarkingConfig(ngram_len=2, keys=[1, 2])},
            "SynthIDTextWatermarkLogitsProcessor remembers earlier calls",
        ),
    ],
    # the cache
    "use_cache": [Refused({"use_cache": False}, "use_cache must be true, but is False"), Same({"use_cache": True})],
    "cache_implementation": [
        Same({"cache_implementation": "dynamic"}),
        *(
            Refused({"cache_implementation": kind}, f"cache_implementation must be None or 'dynamic', but is '{kind}'")
            for kind in ("static", "offloaded", "offloaded_static")
        ),
    ],
    "cache_config": [Idle({"cache_config": {"nbits": 4}})],
    "max_cache_len": [Idle({"max_cache_len": 100})],
    "prefill_chunk_size": [Refused({"prefill_chunk_size": 2}, "prefill_chunk_size is not supported")],
    "compile_config": [Idle({"compile_config": CompileConfig()})],
    "disable_compile": [Idle({"disable_compile": True})],
    "continuous_batching_config": [Idle({"continuous_batching_config": {}})],
    # what comes back
    "return_dict_in_generate": [Same(RETURNED)],
    "output_scores": [Refused({"output_scores": True, **RETURNED}, "output_scores is set")],
    "output_logits": [Refused({"output_logits": True, **RETURNED}, "output_logits is set")],
    "output_attentions": [Refused({"output_attentions": True, **RETURNED}, "given output_attentions")],
    "output_hidden_states": [Refused({"output_hidden_states": True, **RETURNED}, "given output_hidden_states")],
    # assistance: how it is honoured is tested next door
    "is_assistant": [Refused({"is_assistant": True}, "is_assistant is what transformers sets for a draft")],
    "num_assistant_tokens": [
        Same({"num_assistant_tokens": 2, **MODEL}),
        Refused(MODEL | {"num_assistant_tokens": 3, "num_speculative_tokens": 3}, "exclude each other"),
        Refused(LOOKUP | {"num_assistant_tokens": 3}, "exclude each other"),
        Refused(MODEL | TREE | {"num_assistant_tokens": 4}, "exclude each other"),
    ],
    "num_assistant_tokens_schedule": [
        Same({"num_assistant_tokens_schedule": "heuristic_transient", **MODEL}),
        Refused({"num_assistant_tokens_schedule": "none", **MODEL}, "num_assistant_tokens_schedule must be one of"),
        Refused(
            MODEL
            | {"num_assistant_tokens_schedule": "heuristic", "verification": "coupled", "rule": "clamped:width=1.0"},
            "but num_speculative_tokens is transformers' heuristic schedule: give num_speculative_tokens=6",
        ),
        Refused(
            MODEL | {"num_assistant_tokens_schedule": "heuristic", "num_speculative_tokens": "auto"},
            "num_speculative_tokens and num_assistant_tokens_schedule exclude each other",
        ),
    ],
    "assistant_confidence_threshold": [
        Same({"assistant_confidence_threshold": 0.7, **MODEL}),
        Refused({"assistant_confidence_threshold": 0.7}, "assistant_confidence_threshold goes with an assistant_model"),
        Refused({"assistant_early_exit": 1, "assistant_confidence_threshold": 0.5}, "goes with an assistant_model"),
        *(
            Refused(MODEL | {"assistant_confidence_threshold": 0.5} | length, "and a draft length exclude each other")
            for length in (TREE, {"num_speculative_tokens": "auto"})
        ),
        Refused(
            MODEL | {"assistant_confidence_threshold": 0.5, "verification": "block", "rule": "clamped:width=1.0"},
            "block verification of a relaxed rule needs a draft model and a fixed number",
        ),
        Refused(
            MODEL | {"assistant_confidence_threshold": 0.5, "verification": "coupled", "rule": "clamped:width=1.0"},
            "coupled verification of a relaxed rule needs a fixed number",
        ),
    ],
    "prompt_lookup_num_tokens": [
        Same(LOOKUP),
        Refused(MODEL | LOOKUP, "prompt_lookup_num_tokens and assistant_model exclude each other"),
        Refused(NGRAM | LOOKUP, "exclude each other"),
        Refused(LOOKUP | {"assistant_early_exit": 1}, "exclude each other"),
    ],
    "max_matching_ngram_size": [
        Same({"max_matching_ngram_size": 3, "prompt_lookup_num_tokens": 3}),
        Refused({"max_matching_ngram_size": 3}, "max_matching_ngram_size goes with prompt_lookup_num_tokens"),
    ],
    "assistant_early_exit": [
        Same({"assistant_early_exit": 1}),
        Refused({"assistant_early_exit": 2}, "an early exit must be before layer 2, the last, but is at 2"),
        Refused({"assistant_early_exit": 1, **GPT2}, "GPT2LMHeadModel has no list of layers to leave some out of"),
    ],
    "use_mtp": [Refused({"use_mtp": True}, "no associated mtp weights")],
    "assistant_lookbehind": [Refused({"assistant_lookbehind": 3, **MODEL}, "assistant_lookbehind is read from")],
    "target_lookbehind": [Refused({"target_lookbehind": 3, **MODEL}, "target_lookbehind is read from")],
    "assistant_ensemble_weight": [
        Refused({"assistant_ensemble_weight": 0.5, **MODEL}, "give rule='ensemble:weight=...' instead")
    ],
    "speculation_type": [
        Refused({"speculation_type": "dflash"}, "speculation_type must be None, or 'dflash' with an assistant_model"),
        Refused({"speculation_type": "other", **MODEL}, "speculation_type must be None, or 'dflash'"),
        *(
            [Refused(DFLASH | {"assistant_model": tiny_dflash(0)}, "does not go with a Muse")]
            if at_least("5.19.0")
            else []
        ),
    ],
    # bookkeeping of the library
    "transformers_version": [],
    "_from_model_config": [],
}

MAMBA = MambaForCausalLM(
    MambaConfig(vocab_size=8, hidden_size=16, num_hidden_layers=1, state_size=4, **NO_SPECIAL_TOKENS)
).eval()
CACHE = default_cache_argument()
FILLED = DynamicCache()
for _layer in range(2):
    FILLED.update(torch.zeros(1, 1, 2, 8).double(), torch.zeros(1, 1, 2, 8).double(), _layer)
LENGTHS = {"max_length": 20, "max_new_tokens": None, "min_length": 9, "eos_token_id": 5}
PADDED = {"inputs": torch.tensor([[0, 0, 1, 2, 3]]), "attention_mask": torch.tensor([[0, 0, 1, 1, 1]])}

ARGUMENTS: dict[str, list[Case]] = {
    "inputs": [
        Same({"inputs": PROMPT.flip(1)}, {}),
        Same({"inputs": None, "input_ids": PROMPT}),
        Refused({"inputs": PROMPT.expand(2, 3)}, "one prompt at a time, but was given 2"),
        Refused({"inputs": None}, "`bos_token_id` has to be defined when no `input_ids` are provided"),
        Refused({"inputs": torch.ones(1, 64).long(), **GPT2}, "shorter than the target's 64 positions, but has 64"),
    ],
    "generation_config": [Same({"generation_config": GenerationConfig(repetition_penalty=1.7)}, {})],
    "logits_processor": [
        Same({"logits_processor": LogitsProcessorList([logits_process.SuppressTokensLogitsProcessor([0, 2, 5])])}, {})
    ],
    "stopping_criteria": [
        Same({"stopping_criteria": [MaxLengthCriteria(8)]}, {}),
        Same({"stopping_criteria": [lambda ids, scores: torch.tensor([ids[0, -1] == 4])]}, {}),
    ],
    "prefix_allowed_tokens_fn": [Same({"prefix_allowed_tokens_fn": lambda batch, ids: [int(ids[-1] + 1) % 8]}, {})],
    "synced_gpus": [Refused({"synced_gpus": True}, "synced_gpus is not supported"), Same({"synced_gpus": False})],
    "assistant_model": [
        Same(MODEL),
        Refused(WIDE, "the target's vocabulary has 8 tokens, but the draft's has 11"),
        Refused({"assistant_model": "a name"}, "assistant_model must be a transformers model", TypeError),
        Refused({"assistant_model": ModelDrafter(tiny_gpt2(0))}, "assistant_model must be a transf", TypeError),
        Refused({"assistant_model": tiny_gpt2(1, positions=3)}, "num_speculative_tokens must be below the draft's"),
        Refused({"assistant_model": MAMBA}, "MambaForCausalLM keeps a recurrent state"),
        Refused({"model": "mamba"}, "MambaForCausalLM keeps a recurrent state"),
        Refused({"model": "t5"}, "T5ForConditionalGeneration is an encoder-decoder model"),
        Refused({"model": "xlnet"}, "XLNetLMHeadModel keeps a memory of its own and no cache"),
    ],
    "streamer": [Same({"streamer": None})],  # what it gets is tested next door
    "negative_prompt_ids": [
        Idle({"negative_prompt_ids": PROMPT}),
        Refused({"negative_prompt_ids": PROMPT, "guidance_scale": 2.0}, "ClassifierFreeGuidance"),
    ],
    "negative_prompt_attention_mask": [Idle({"negative_prompt_attention_mask": torch.ones_like(PROMPT)})],
    "custom_generate": [Refused({"custom_generate": "no-such/repository"}, "no-such/repository", Exception)],
    "kwargs": [Refused({"max_new_token": 3}, "not used by the model: .'max_new_token'")],
    # what goes through ``kwargs``
    "trust_remote_code": [Idle({"trust_remote_code": True})],
    "tokenizer": [Idle({"tokenizer": LETTERS})],
    "assistant_tokenizer": [
        *(
            Refused(
                draft | {CUSTOM: partial(speculative_generate, assistant_tokenizer=LETTERS, **tokenizers)},
                "assistant_tokenizer goes with assistant_model and tokenizer",
            )
            for draft, tokenizers in ((WIDE, {}), (NGRAM, {"tokenizer": LETTERS}))
        ),
        Refused(
            WIDE | {"tokenizer": LETTERS, "assistant_tokenizer": LETTERS}, "bind both tokenizers, which `generate`"
        ),
    ],
    "attention_mask": [
        Same(PADDED | {"model": "qwen2"}),
        Same(PADDED | LENGTHS | {"model": "qwen2"}),  # which count the padding
        Refused({"attention_mask": torch.tensor([[1, 0, 1]])}, "attention_mask must be ones"),
        Refused({"attention_mask": torch.tensor([[0, 0, 0]])}, "attention_mask must be ones"),
        Same({"attention_mask": torch.ones_like(PROMPT)}),
        Refused({"attention_mask": torch.tensor([[1, 1, 0]])}, "attention_mask must be ones, perhaps after zeros"),
    ],
    "position_ids": [
        Same({"position_ids": torch.tensor([[0, 1, 2]])}),
        Refused({"position_ids": torch.tensor([[5, 6, 7]])}, "position_ids must count the prompt's tokens from 0"),
    ],
    CACHE: [
        Refused({CACHE: DynamicCache()}, "past_key_values or cache is not supported"),
        Refused({CACHE: FILLED}, "past_key_values or cache is not supported"),
    ],
    "inputs_embeds": [
        Refused({"inputs": None, "inputs_embeds": torch.zeros(1, 3, 16).double()}, "given inputs_embeds")
    ],
    "token_type_ids": [
        Refused({"token_type_ids": torch.zeros_like(PROMPT)}, "not used by the model: .'token_type_ids'"),
        Refused({"token_type_ids": torch.zeros_like(PROMPT), **GPT2}, "text only, but was given token_type_ids"),
    ],
    "logits_to_keep": [Idle({"logits_to_keep": 2})],
    "labels": [Refused({"labels": PROMPT}, "text only, but was given labels")],
    "encoder_hidden_states": [
        Refused({"encoder_hidden_states": torch.zeros(1, 2, 16), **GPT2}, "given encoder_hidden_states")
    ],
    "decoder_input_ids": [Refused({"decoder_input_ids": PROMPT}, "not used by the model: .'decoder_input_ids'")],
    # what only this package takes
    "drafter": [
        Refused({"drafter": None}, "a draft is missing"),
        Refused({"drafter": "ngram"}, "drafter must be a Drafter", TypeError),
        Refused({"drafter": tiny_llama(1)}, "but is a LlamaForCausalLM; give a model as assistant_model", TypeError),
        Refused({"drafter": ModelDrafter(tiny_llama(1, 11))}, "vocabulary has 8 tokens, but the draft's has 11"),
        Refused(MODEL | NGRAM, "exclude each other"),
        Refused(
            TREE | {"drafter": PromptLookupCandidateGenerator(max_length=64)},
            "CandidateGeneratorDrafter proposes chains only, but",
        ),
    ],
    "rule": [Refused({"rule": "cactsu"}, "unknown rule 'cactsu'")],
    "generator": [
        Refused({"seed": 1, "generator": torch.Generator()}, "generator and seed exclude each other"),
        Refused({"generator": 1}, "generator must be a torch.Generator", TypeError),
    ],
    "num_speculative_tokens": [
        Refused(
            {"assistant_model": tiny_gpt2(1), "num_speculative_tokens": 64},
            "must be below the draft's 64 positions, but is 64",
        )
    ],
    "tree": [
        Refused(MODEL | {"tree": "static=4.x"}, "static must be numbers"),
        Refused(MODEL | TREE | {"verification": "block"}, "use verification='joint', which is the same"),
        Refused(MODEL | {"num_speculative_tokens": 4, "verification": "joint"}, "verification='joint' is for trees"),
    ],
    "an empty input": [Idle({"output_attentions": False}), Idle({"labels": None})],
}

CASES = [(name, case) for table in (FIELDS, ARGUMENTS) for name, cases in table.items() for case in cases]
if not at_least("5.19.0"):  # which has fewer options, and other answers to some
    _OTHERWISE = {
        *("assistant_ensemble_weight", "continuous_batching_config", "max_cache_len"),
        *("position_ids", "speculation_type", "use_mtp"),
    }
    CASES = [(name, case) for name, case in CASES if name not in _OTHERWISE]
DRAFTS = ("assistant_model", "prompt_lookup_num_tokens", "assistant_early_exit", "use_mtp")


ENCODED = NO_SPECIAL_TOKENS | {"decoder_start_token_id": 0}


@pytest.fixture(scope="module")
def models():
    t5 = T5Config(d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, vocab_size=8, **ENCODED)
    xlnet = XLNetConfig(vocab_size=8, d_model=16, n_layer=1, n_head=2, d_inner=24, **NO_SPECIAL_TOKENS)
    return {
        "llama": tiny_llama(0),
        "gpt2": tiny_gpt2(0),
        "qwen2": tiny_qwen2(0),
        "mamba": MAMBA,
        "t5": T5ForConditionalGeneration(t5).eval(),
        "xlnet": XLNetLMHeadModel(xlnet).eval(),
    }


def cases(kind: type) -> Any:
    chosen = [(name, case) for name, case in CASES if isinstance(case, kind)]
    return all_of("name, case", chosen)


def call(models, given: dict[str, Any], **more) -> Any:
    given = BASE | given | more
    answer = models[given.pop("model", "llama")].generate(given.pop("inputs", PROMPT), **given)
    return answer if isinstance(answer, torch.Tensor) else answer.sequences


def ours(models, given: dict[str, Any], **more) -> Any:
    draft = {} if any(name in given for name in DRAFTS) else NGRAM
    return call(models, {"custom_generate": speculative_generate} | draft | given, **more)


def stock(models, given: dict[str, Any]) -> Any:
    # without a draft: what `generate` itself draws with one is its own affair
    return call(models, {name: value for name, value in given.items() if name not in DRAFTS})


def test_no_field_of_the_generation_config_is_missing():
    known = GenerationConfig().to_dict().keys()
    assert known <= FIELDS.keys(), f"say how these are handled: {sorted(known - FIELDS.keys())}"
    assert len(CASES) > 100


def test_no_parameter_of_generate_is_missing():
    known = inspect.signature(GenerationMixin.generate).parameters.keys() - {"self"}
    assert known <= ARGUMENTS.keys(), f"say how these are handled: {sorted(known - ARGUMENTS.keys())}"


@pytest.mark.filterwarnings("ignore::UserWarning")
@cases(Same)
def test_the_answer_is_that_of_generate(models, name, case):
    plain = stock(models, case.given)
    assert torch.equal(ours(models, case.given), plain)
    if case.without is not None:
        assert not torch.equal(stock(models, case.without), plain), "the option made no difference"
    if not any(source in case.given for source in DRAFTS):  # proposals are kept, and rejected
        metrics = Metrics()
        for assistant in (models[case.given.get("model", "llama")], tiny_llama(1)):
            own = {"custom_generate": speculative_generate, "assistant_model": assistant, "metrics": metrics}
            assert torch.equal(call(models, case.given, **own), plain)
        assert metrics.accepted > 0 or plain.shape[1] < 6


@cases(Idle)
def test_what_does_nothing_in_generate_does_nothing_here(models, name, case):
    assert torch.equal(stock(models, case.given), stock(models, {}))
    assert torch.equal(ours(models, case.given), stock(models, {}))


@cases(Refused)
def test_the_rest_is_refused_by_name(models, name, case):
    def fail(*_):
        pytest.fail("the target ran before the error was found")

    handles = [model.register_forward_pre_hook(fail) for model in models.values()]
    try:
        with pytest.raises(case.error, match=case.message) as raised:
            ours(models, case.given)
        assert len(str(raised.value)) < 400, "models are named, not printed"
    finally:
        for handle in handles:
            handle.remove()


class LooksAtRows(Drafter):
    """Keeps the rows that fixed logits become: those the loop draws from."""

    LOGITS = 3 * torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    MORE = (5, 2, 3)

    def propose(self, token_ids, limit, to_probs, generator):
        self.rows = to_probs(self.LOGITS, [*token_ids, *self.MORE])
        return Proposal([], None)


@cases(Rows)
def test_sampled_rows_are_those_of_generate_s_processors(models, name, case):
    drafter, processors = LooksAtRows(), []

    def capture(model, input_ids, logits_processor, **_):
        processors.append(logits_processor)
        return input_ids

    settings = BASE | case.given | {"do_sample": True, "max_new_tokens": 2}
    models["llama"].generate(PROMPT, custom_generate=speculative_generate, drafter=drafter, **settings)
    models["llama"].generate(PROMPT, custom_generate=capture, **settings)
    history = torch.cat([PROMPT, torch.tensor([LooksAtRows.MORE])], 1)
    expected = torch.cat(
        [processors[0](history[:, : 3 + i], drafter.LOGITS[i : i + 1].clone()).softmax(-1) for i in range(4)]
    )
    # the first proposal follows the prompt alone
    torch.testing.assert_close(drafter.rows.float(), expected, rtol=1e-5, atol=1e-7)
    if name != "do_sample":
        assert not torch.allclose(expected, drafter.LOGITS.softmax(-1), atol=1e-3), "the option made no difference"
