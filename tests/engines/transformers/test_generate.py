"""`speculative_generate` inside `generate`: everything that stock `generate` promises, and every refusal."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from support.chi_square import rejects
from support.tables import all_of
from support.tiny_architectures import (
    NO_SPECIAL_TOKENS,
    letter_tokenizer,
    tiny_gemma3,
    tiny_gpt2,
    tiny_mistral,
    tiny_qwen2,
)
from support.tiny_models import tiny_llama
from support.versions import at_least, since
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    MambaConfig,
    MambaForCausalLM,
    StoppingCriteria,
    StopStringCriteria,
    T5Config,
    T5ForConditionalGeneration,
)
from transformers.generation import logits_process
from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

from cactus_decoding import (
    CandidateGeneratorDrafter,
    Metrics,
    ModelDrafter,
    NgramDrafter,
    SamplingParams,
    SuffixDrafter,
    speculative_generate,
)
from cactus_decoding.engines.transformers.compatibility import named_arguments_of_generate

PROMPT = torch.tensor([[1, 2, 3]])
LONG_PROMPT = torch.tensor([[1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 3]])


def speculate(model, prompt=PROMPT, **given):
    return model.generate(prompt, custom_generate=speculative_generate, **given)


# --- greedy equality -------------------------------------------------------------------------------------------------

ARCHITECTURES = [tiny_llama, tiny_gpt2, tiny_mistral, tiny_gemma3, tiny_qwen2]
DRAFTERS = {
    "model": lambda model, draft: {"assistant_model": draft},
    "itself": lambda model, draft: {"assistant_model": model},
    "ngram": lambda model, draft: {"drafter": NgramDrafter()},
    "suffix": lambda model, draft: {"drafter": SuffixDrafter()},
    "lookup": lambda model, draft: {"prompt_lookup_num_tokens": 4},
    "candidate generator": lambda model, draft: {
        "drafter": PromptLookupCandidateGenerator(max_length=64, eos_token_id=torch.tensor([-1]))  # 5.0 wants an end
    },
    "early exit": lambda model, draft: {"assistant_early_exit": 1},
    "none": lambda model, draft: {"num_speculative_tokens": 0},
}


@pytest.mark.parametrize(
    ("architecture", "kind"),
    [
        (a, kind)
        for a in ARCHITECTURES
        for kind in DRAFTERS
        if kind != "early exit" or (a is not tiny_gpt2 and at_least("5.19.0"))  # before it fails by itself
    ],
)
def test_greedy_equals_stock_generate(architecture, kind):
    """To the end of the context window, past a window that slides over 8 of the prompt's 12 tokens."""
    model, other = architecture(0), architecture(1)
    plain = model.generate(LONG_PROMPT, do_sample=False, max_length=64)
    arguments = DRAFTERS[kind](model, other)
    for rule in ("lossless", "cactus:delta=1.0"):
        ours = speculate(model, LONG_PROMPT, do_sample=False, max_length=64, rule=rule, **arguments)
        assert torch.equal(ours, plain)


def test_a_draft_of_another_architecture(target):
    plain = target.generate(PROMPT, do_sample=False, max_length=40)
    for other in (tiny_gpt2(3), tiny_mistral(4), tiny_gpt2(5, positions=16)):
        assert torch.equal(speculate(target, do_sample=False, max_length=40, assistant_model=other), plain)


# --- the sampled law -------------------------------------------------------------------------------------------------


def law_is_emitted(model, arguments, sampling, processors=(), draws=500) -> bool:
    """Compare the first two new tokens with the law worked out from the target's logits."""

    def row(ids):
        with torch.no_grad():
            scores = model(ids).logits[:, -1].float()
        for processor in processors:
            scores = processor(ids, scores)
        return sampling(scores[0])

    law = row(PROMPT).unsqueeze(1) * torch.stack([row(torch.cat([PROMPT, torch.tensor([[t]])], 1)) for t in range(8)])
    torch.manual_seed(0)
    seen = []
    for _ in range(draws):
        first, second = speculate(model, do_sample=True, max_new_tokens=4, **arguments)[0, 3:5].tolist()
        seen.append(8 * first + second)
    return not rejects(torch.tensor(seen), law.flatten())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "sampling", "processors"),
    [
        ({"top_k": 0}, SamplingParams(), []),
        ({"temperature": 0.7, "top_k": 5, "top_p": 0.9}, SamplingParams(0.7, 5, 0.9), []),
        (
            {"top_k": 0, "repetition_penalty": 2.0, "min_p": 0.05},
            SamplingParams(min_p=0.05),
            [logits_process.RepetitionPenaltyLogitsProcessor(2.0)],
        ),
    ],
    ids=["plain", "cut", "penalty"],
)
def test_lossless_emits_the_target_s_law_of_two_tokens(target, draft, arguments, sampling, processors):
    assert law_is_emitted(target, {"assistant_model": draft} | arguments, sampling, processors)


# --- processors ------------------------------------------------------------------------------------------------------


class NotTheSecondLast(LogitsProcessor):
    """Forbids the token before the last: wrong history, wrong token. It also writes into its argument."""

    def __call__(self, input_ids, scores):
        assert input_ids.shape[0] == scores.shape[0] == 1
        scores[:, input_ids[0, -2]] = -torch.inf
        return scores


@pytest.mark.parametrize(
    "arguments", [{"no_repeat_ngram_size": 2}, {"logits_processor": LogitsProcessorList([NotTheSecondLast()])}]
)
@pytest.mark.parametrize("itself", [False, True])
def test_processors_see_each_row_s_own_prefix(target, draft, arguments, itself):
    arguments = {"do_sample": False, "max_new_tokens": 30, "pad_token_id": 0} | arguments
    plain = target.generate(PROMPT, **arguments)
    metrics = Metrics()
    assistant = target if itself else draft
    assert torch.equal(speculate(target, assistant_model=assistant, metrics=metrics, **arguments), plain)
    if itself:
        assert metrics.accepted == metrics.drafted > 0, "the draft's rows were processed otherwise than the target's"


# --- ends ------------------------------------------------------------------------------------------------------------


def test_ends_at_the_first_end_token_inside_a_block(target):
    whole = target.generate(PROMPT, do_sample=False, max_new_tokens=20)[0, 3:].tolist()
    for end in sorted(set(whole)):
        arguments = {"do_sample": False, "max_new_tokens": 20, "eos_token_id": end, "pad_token_id": 0}
        metrics = Metrics()
        ours = speculate(target, assistant_model=target, metrics=metrics, **arguments)
        assert torch.equal(ours, target.generate(PROMPT, **arguments))
        assert ours[0, -1] == end
        assert metrics.generated == ours.shape[1] - 3


def test_ends_at_a_stop_string_inside_a_block(target):
    tokenizer = letter_tokenizer("abcdefgh")
    whole = tokenizer.decode(target.generate(PROMPT, do_sample=False, max_new_tokens=20)[0, 3:])
    for position in range(8):
        stop = whole[position : position + 2]
        criteria = [StopStringCriteria(tokenizer, [stop])]
        arguments = {"do_sample": False, "max_new_tokens": 20, "stopping_criteria": criteria}
        ours = speculate(target, assistant_model=target, **arguments)
        assert torch.equal(ours, target.generate(PROMPT, **arguments))
        assert tokenizer.decode(ours[0, 3:]) == whole[: whole.index(stop) + 2]


class Watcher(StoppingCriteria):
    """Writes down what it is asked about, and ends after some tokens."""

    def __init__(self, last: int) -> None:
        self.last, self.seen = last, []

    def __call__(self, input_ids, scores, **kwargs):
        self.seen.append(input_ids[0].tolist())
        return torch.tensor([input_ids.shape[1] >= self.last])


def test_criteria_are_asked_once_after_each_token_in_order(target, draft):
    for assistant in (target, draft):
        ours, theirs = Watcher(11), Watcher(11)
        arguments = {"do_sample": False, "max_new_tokens": 20}
        speculate(target, assistant_model=assistant, stopping_criteria=[ours], **arguments)
        target.generate(PROMPT, stopping_criteria=[theirs], **arguments)
        assert ours.seen == theirs.seen
        assert len(ours.seen) == 8


# --- what comes back -------------------------------------------------------------------------------------------------


class Tape:
    """A streamer that keeps what it gets."""

    def __init__(self) -> None:
        self.pieces, self.ended = [], 0

    def put(self, value):
        self.pieces.append(value)

    def end(self):
        self.ended += 1


@pytest.mark.parametrize("bound", [False, True])
def test_a_streamer_gets_what_it_would_get_in_stock_generate(target, draft, bound):
    ours, theirs = Tape(), Tape()
    arguments = {"do_sample": False, "max_new_tokens": 12}
    target.generate(PROMPT, streamer=theirs, **arguments)
    if bound:  # the streamer given to `generate` gets the prompt, the one that is bound gets the response
        prompt = theirs.pieces.pop(0)
        assert torch.equal(prompt, PROMPT)
        custom = partial(speculative_generate, assistant_model=draft, streamer=ours)
        target.generate(PROMPT, custom_generate=custom, **arguments)
    else:
        speculate(target, assistant_model=draft, streamer=ours, **arguments)
    assert ours.ended == theirs.ended == 1
    assert [piece.tolist() for piece in ours.pieces] == [piece.tolist() for piece in theirs.pieces]
    assert [piece.shape for piece in ours.pieces] == [piece.shape for piece in theirs.pieces]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_left_padding_is_put_back(architecture):
    model, other = architecture(0), architecture(1)
    padded = torch.tensor([[5, 5, 5, 1, 2, 3]])
    mask = torch.tensor([[0, 0, 0, 1, 1, 1]])
    bare = speculate(model, do_sample=False, max_new_tokens=20, assistant_model=other)
    ours = speculate(model, padded, attention_mask=mask, do_sample=False, max_new_tokens=20, assistant_model=other)
    assert ours[0, :6].tolist() == padded[0].tolist()
    assert torch.equal(ours[:, 3:], bare)


def test_processors_and_lengths_count_padding_as_in_stock_generate():
    model, other = tiny_qwen2(0), tiny_qwen2(1)
    padded, mask = torch.tensor([[0, 0, 0, 1, 2, 3]]), torch.tensor([[0, 0, 0, 1, 1, 1]])
    arguments = {"do_sample": False, "max_length": 20, "min_length": 9, "eos_token_id": 5, "pad_token_id": 0}
    plain = model.generate(padded, attention_mask=mask, **arguments)
    assert torch.equal(speculate(model, padded, attention_mask=mask, assistant_model=other, **arguments), plain)
    unpadded = model.generate(PROMPT, **arguments)
    assert plain.shape[1] - 3 < unpadded.shape[1], "the padding made no difference"
    assert torch.equal(speculate(model, assistant_model=other, **arguments), unpadded)


def test_metrics_are_added_to_the_caller_s(target, draft):
    metrics = Metrics(steps=100)
    response = speculate(target, assistant_model=draft, do_sample=True, max_new_tokens=15, seed=0, metrics=metrics)
    assert metrics.generated == response.shape[1] - 3 == 15
    assert metrics.steps == 100 + metrics.recovered + metrics.bonus
    assert metrics.seconds > 0


# --- randomness ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "randomness",
    [
        lambda seed: {"generator": torch.Generator().manual_seed(seed)},
        lambda seed: torch.manual_seed(seed) and {},
    ],
    ids=["generator", "torch"],
)
def test_random_numbers_may_come_from_elsewhere_than_a_seed(target, draft, randomness):
    first, again, other = (
        speculate(target, assistant_model=draft, do_sample=True, max_new_tokens=30, **randomness(seed))[0].tolist()
        for seed in (1, 1, 2)
    )
    assert first == again != other


# --- how arguments arrive --------------------------------------------------------------------------------------------


def test_arguments_may_be_bound_beforehand(target, draft):
    bound = partial(speculative_generate, assistant_model=draft, rule="cactus:delta=1.0", seed=3)
    ours = target.generate(PROMPT, custom_generate=bound, do_sample=True, max_new_tokens=20)
    arguments = {"do_sample": True, "max_new_tokens": 20, "rule": "cactus:delta=1.0", "seed": 3}
    assert torch.equal(ours, speculate(target, assistant_model=draft, **arguments))


def test_what_is_bound_goes_before_what_generate_was_given(target, draft):
    metrics = Metrics()
    bound = partial(speculative_generate, assistant_model=target, metrics=metrics)
    target.generate(PROMPT, custom_generate=bound, assistant_model=draft, max_new_tokens=20)
    assert metrics.accepted == metrics.drafted > 0


def test_without_generate_nothing_is_found(target, draft):
    assert named_arguments_of_generate(target) == {}
    found = []

    def custom(model, input_ids, **kwargs):
        found.extend([named_arguments_of_generate(model), named_arguments_of_generate(draft)])
        return input_ids

    target.generate(PROMPT, custom_generate=custom, assistant_model=draft, max_new_tokens=5)
    assert found == [{"max_new_tokens": 5, "assistant_model": draft, "streamer": None, "synced_gpus": None}, {}]


@pytest.mark.parametrize(("given", "expected"), [({}, 6), ({"num_speculative_tokens": 2}, 2)])
def test_number_of_speculative_tokens(target, given, expected):
    metrics = Metrics()
    speculate(
        target, assistant_model=target, max_new_tokens=1 + 2 * expected + 1, do_sample=False, metrics=metrics, **given
    )
    assert metrics.drafted == 2 * expected
    metrics = Metrics()
    repeated = torch.tensor([[1, 2, 3, 4, 5, 6, 7, 1, 2, 3]])
    arguments = {"prompt_lookup_num_tokens": 3, "max_new_tokens": 5, "metrics": metrics}
    speculate(target, repeated, **arguments, **given)
    assert metrics.drafted >= given.get("num_speculative_tokens", 3)


# --- refusals --------------------------------------------------------------------------------------------------------


@pytest.fixture
def idle(target):
    """The target, failing the test if anything runs it."""

    def fail(*_):
        pytest.fail("the target ran before the error was found")

    handle = target.register_forward_pre_hook(fail)
    yield target
    handle.remove()


REFUSED = {
    "no draft": ({}, "a draft is missing"),
    "two drafts": ({"drafter": NgramDrafter(), "assistant_model": tiny_llama(1)}, "exclude each other"),
    "no drafter": ({"drafter": "ngram"}, "drafter must be a Drafter"),
    "no drafter but a model": (
        {"drafter": tiny_llama(1)},
        "but is a LlamaForCausalLM; give a model as assistant_model",
    ),
    "unknown rule": ({"rule": "cactsu"}, "unknown rule 'cactsu'"),
    "two seeds": ({"seed": 1, "generator": torch.Generator()}, "generator and seed exclude each other"),
    "no generator": ({"generator": 1}, "generator must be a torch.Generator"),
    "a hole in the mask": ({"attention_mask": torch.tensor([[1, 0, 1]])}, "attention_mask must be ones"),
    "nothing but padding": ({"attention_mask": torch.tensor([[0, 0, 0]])}, "attention_mask must be ones"),
    "another width": ({"drafter": ModelDrafter(tiny_llama(1, 11))}, "vocabulary has 8 tokens, but the draft's has 11"),
    "a short window": (
        {"assistant_model": tiny_gpt2(1, positions=3)},
        "num_speculative_tokens must be below the draft's",
    ),
    "many proposals": (
        {"assistant_model": tiny_gpt2(1), "num_speculative_tokens": 64},
        "must be below the draft's 64 positions, but is 64",
    ),
}


if at_least("5.19.0"):
    REFUSED["image features"] = (
        {"prompt": PROMPT, "mm_encoder_outputs": {"image": torch.ones(1)}},
        "given mm_encoder_outputs",
    )
    REFUSED["early exit"] = ({"assistant_early_exit": 2, "drafter": None}, "exit_layer must be between 1 and 1")


@all_of("case", REFUSED)
def test_refusals(idle, case):
    given, message = dict(REFUSED[case][0]), REFUSED[case][1]
    prompt = given.pop("prompt", PROMPT)
    if case not in ("no draft", "early exit") and not {"assistant_model", "drafter"} & given.keys():
        given["drafter"] = NgramDrafter()
    if given.get("drafter", "") is None:
        del given["drafter"]
    error = TypeError if case.startswith("no ") and case != "no draft" else ValueError
    with pytest.raises(error, match=message):
        speculate(idle, prompt, max_new_tokens=5, **given)


def test_a_prompt_that_fills_the_target_s_window_is_refused():
    model = tiny_gpt2(0, positions=8)
    with pytest.raises(ValueError, match="prompt must be shorter than the target's 8 positions, but has 8"):
        speculate(model, torch.arange(8).view(1, 8), max_new_tokens=4, drafter=NgramDrafter())


def test_pad_tokens_without_a_mask_are_taken_for_padding_as_in_stock_generate(target, draft):
    with pytest.raises(ValueError, match="where none is given, `generate` takes pad tokens for padding"):
        speculate(target, assistant_model=draft, pad_token_id=2, max_new_tokens=5)


def test_encoder_decoder_models_are_refused():
    config = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2, "vocab_size": 8}
    model = T5ForConditionalGeneration(T5Config(**config, **NO_SPECIAL_TOKENS | {"decoder_start_token_id": 0}))
    with pytest.raises(ValueError, match="T5ForConditionalGeneration is an encoder-decoder model"):
        speculate(model.eval(), max_new_tokens=5, drafter=NgramDrafter())


def test_recurrent_models_are_refused_as_target_and_as_draft(idle):
    config = MambaConfig(vocab_size=8, hidden_size=16, num_hidden_layers=1, state_size=4, **NO_SPECIAL_TOKENS)
    model = MambaForCausalLM(config).double().eval()
    for refused in (lambda: speculate(model, drafter=NgramDrafter(), max_new_tokens=5),):
        with pytest.raises(ValueError, match="MambaForCausalLM keeps a recurrent state"):
            refused()
    with pytest.raises(ValueError, match="MambaForCausalLM keeps a recurrent state"):
        speculate(idle, assistant_model=model, max_new_tokens=5)
    with pytest.raises(ValueError, match="MambaForCausalLM keeps a recurrent state"):
        CandidateGeneratorDrafter.assisted(model)


@since("5.19.0")
def test_early_exit_needs_a_model_that_can_exit():
    with pytest.raises(ValueError, match="GPT2LMHeadModel cannot exit early"):
        speculate(tiny_gpt2(0), assistant_early_exit=1, max_new_tokens=5)


@pytest.mark.parametrize("broken", ["target", "draft"])
@pytest.mark.parametrize("do_sample", [True, False])
def test_logits_that_are_no_numbers_are_an_error(broken, do_sample):
    models = {"target": tiny_llama(0), "draft": tiny_llama(1)}
    with torch.no_grad():
        models[broken].lm_head.weight[3, 0] = torch.nan
    with pytest.raises(ValueError, match=f"the {broken}'s logits after 3 tokens give no probabilities"):
        speculate(models["target"], assistant_model=models["draft"], do_sample=do_sample, max_new_tokens=5)
