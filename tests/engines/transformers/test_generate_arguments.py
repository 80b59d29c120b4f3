"""What a `generate` call's processors come to: plain sampling, which is fast, or more, which is asked row by row."""

from functools import partial

import pytest
import torch
from support.tables import all_of
from support.tiny_architectures import letter_tokenizer
from support.tiny_models import tiny_llama
from transformers import GenerationConfig, LogitsProcessorList, StopStringCriteria
from transformers.generation import logits_process as processors

from cactus_decoding import ModelDrafter, SamplingParams, speculative_generate
from cactus_decoding.engines.transformers import generate as adapter
from cactus_decoding.engines.transformers.generate_arguments import ProcessedProbs, sampling_of

WARM = processors.TemperatureLogitsWarper(0.7)
TOP_K, TOP_P = processors.TopKLogitsWarper(20), processors.TopPLogitsWarper(0.9)
MIN_P = processors.MinPLogitsWarper(0.02)
SAMPLED = GenerationConfig(do_sample=True)
PLAIN = {
    "none": ([], SamplingParams()),
    "temperature": ([WARM], SamplingParams(0.7)),
    "top-k": ([TOP_K], SamplingParams(top_k=20)),
    "all": ([WARM, TOP_K, TOP_P, MIN_P], SamplingParams(0.7, 20, 0.9, 0.02)),
    "two": ([WARM, TOP_P], SamplingParams(0.7, top_p=0.9)),
}
MORE = {
    "another order": [TOP_P, TOP_K],
    "twice": [TOP_K, TOP_K],
    "another kind": [WARM, processors.RepetitionPenaltyLogitsProcessor(1.2)],
    "a subclass": [type("Own", (processors.TopKLogitsWarper,), {})(20)],
    "more kept": [processors.TopPLogitsWarper(0.9, min_tokens_to_keep=3)],
    "what only transformers allows": [processors.TopPLogitsWarper(0.0)],
    "another filler": [processors.TopKLogitsWarper(20, filter_value=-1e4)],
}


@pytest.mark.parametrize("case", PLAIN)
def test_plain_sampling_gives_the_rows_of_the_processors(case):
    given, expected = PLAIN[case]
    sampling = sampling_of(LogitsProcessorList(given), SAMPLED)
    assert sampling == expected
    logits, ids = 4 * torch.randn(50, 300, generator=torch.Generator().manual_seed(0)), torch.tensor([[1]])
    rows = ProcessedProbs(LogitsProcessorList(given), SAMPLED, ids, 0)(logits, [1] * 50)
    torch.testing.assert_close(sampling(logits), rows, rtol=1e-5, atol=1e-7)
    assert torch.equal(sampling(logits) > 0, rows > 0)


@pytest.mark.parametrize("case", MORE)
def test_anything_else_is_asked_itself(case):
    assert sampling_of(LogitsProcessorList(MORE[case]), SAMPLED) is None


def test_without_sampling_any_processor_is_asked_itself():
    greedy = GenerationConfig(do_sample=False)
    assert sampling_of(LogitsProcessorList(), greedy) == SamplingParams(temperature=0.0)
    assert sampling_of(LogitsProcessorList([TOP_K]), greedy) is None


@pytest.mark.parametrize("settings", [{"do_sample": True, "top_k": 5, "temperature": 0.8}, {"do_sample": False}])
@pytest.mark.parametrize("rule", ["lossless", "cactus:delta=0.5", "clamped:width=1.0"])
def test_the_fast_way_takes_the_tokens_of_the_slow_one(settings, rule, monkeypatch):
    target, draft = tiny_llama(0), tiny_llama(1)

    def tokens():
        given = {"custom_generate": speculative_generate, "drafter": ModelDrafter(draft), "rule": rule, "seed": 3}
        prompt = torch.tensor([[1, 2, 3]])
        return target.generate(prompt, max_new_tokens=40, pad_token_id=0, **settings, **given).tolist()

    fast = tokens()
    monkeypatch.setattr(adapter, "sampling_of", lambda *_: None)
    assert tokens() == fast


def asked_of(monkeypatch, **given):
    seen, begin = [], adapter.begin

    def watched(models, request, token_ids, **more):
        seen.append((request, more["sampling"]))
        return begin(models, request, token_ids, **more)

    monkeypatch.setattr(adapter, "begin", watched)
    custom = partial(speculative_generate, drafter=ModelDrafter(tiny_llama(1)), tokenizer=letter_tokenizer("abcdefgh"))
    tiny_llama(0).generate(torch.tensor([[1, 2, 3]]), custom_generate=custom, pad_token_id=0, **given)
    return seen.pop()


SAMPLING = {"do_sample": True, "temperature": 0.6, "top_k": 5, "top_p": 0.9}


@all_of(
    "given, sampling, plain",
    [
        ({"do_sample": False}, SamplingParams(0), True),
        ({"do_sample": False, "repetition_penalty": 1.5}, SamplingParams(0), False),
        (SAMPLING, SamplingParams(0.6, 5, 0.9), True),
        (SAMPLING | {"repetition_penalty": 1.5}, SamplingParams(0.6), False),
        (SAMPLING | {"repetition_penalty": 1.5, "temperature": 1e-25}, SamplingParams(0), False),
    ],
)
def test_the_request_says_what_will_happen(monkeypatch, given, sampling, plain):
    """Cuts among other processors are no `SamplingParams`: the temperature is what is left to say."""
    request, rows = asked_of(monkeypatch, max_new_tokens=9, seed=7, **given)
    assert (request.sampling, request.max_new_tokens, request.seed, request.stop) == (sampling, 9, 7, ())
    assert rows.plain == (sampling if plain else None)


def test_the_request_has_the_lengths_and_stop_strings_of_the_call(monkeypatch):
    request, _ = asked_of(monkeypatch, max_length=20, do_sample=False)
    assert (request.max_new_tokens, request.seed) == (17, None)
    criteria = [StopStringCriteria(letter_tokenizer("abcdefgh"), ["ab", "c"])]
    request, _ = asked_of(monkeypatch, max_new_tokens=4, do_sample=False, stopping_criteria=criteria)
    assert request.stop == ("ab", "c")
