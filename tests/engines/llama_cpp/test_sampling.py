"""Rows against llama.cpp's own chain of samplers, which llama-cpp-python makes for a call."""

import llama_cpp.llama_cpp as low_level
import numpy as np
import pytest
import torch
from llama_cpp import LlamaGrammar

from cactus_decoding.core.sampling.params import SamplingParams
from cactus_decoding.engines.llama_cpp.models.library import CANDIDATE
from cactus_decoding.engines.llama_cpp.sampling import (
    GrammarMask,
    LlamaSampling,
    LogitBias,
    Penalties,
    as_sampling_params,
    row_processor,
)

PROMPT, GENERATED = [1, 9, 9], [5, 9, 5]


def chain(theirs, logits, generated=(), **settings) -> torch.Tensor:
    sampler = theirs._init_sampler(**settings)
    for token in generated:
        sampler.accept(token)
    candidates = np.zeros(len(logits), CANDIDATE)
    candidates["id"], candidates["logit"] = np.arange(len(logits)), logits.numpy()
    pointer = candidates.ctypes.data_as(low_level.llama_token_data_p)
    array = low_level.llama_token_data_array(data=pointer, size=len(logits), selected=-1, sorted=False)
    low_level.llama_sampler_apply(sampler.sampler, array)
    left = np.ctypeslib.as_array(array.data, (array.size,))
    probs = torch.zeros(len(logits))
    if settings["temp"] == 0:
        probs[int(left["id"][array.selected])] = 1.0
    else:
        probs[torch.from_numpy(left["id"].astype(np.int64))] = torch.from_numpy(left["p"].copy())
    return probs


def settings(**given):
    return {"temp": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0} | given


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"temp": 0.0},
        {"temp": 0.3},
        {"temp": -1.0, "top_k": 3},
        {"top_k": 7},
        {"top_p": 0.6},
        {"min_p": 0.1},
        {"temp": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05},  # a completion's own defaults
        {"temp": 1.7, "top_k": 20, "top_p": 0.8, "min_p": 0.02},
        {"temp": 0.02, "top_p": 0.9},
        {"top_p": 0.0},
    ],
)
def test_rows_are_those_that_llama_cpp_draws_from(theirs, given):
    given = settings(**given)
    rows = 3 * torch.randn(3, theirs.n_vocab(), generator=torch.Generator().manual_seed(0))
    sampling = LlamaSampling(as_sampling_params(given["temp"], given["top_k"], given["top_p"], given["min_p"]))
    expected = torch.stack([chain(theirs, row, **given) for row in rows])
    torch.testing.assert_close(sampling(rows, [1, 2, 3]), expected, atol=2e-6, rtol=1e-5)
    if sampling.plain is not None:
        torch.testing.assert_close(sampling.plain(rows), expected, atol=2e-6, rtol=1e-5)
    if given["temp"] == 1.7:  # where temperature comes first, as elsewhere in the package, another law would be drawn
        torch.testing.assert_close(sampling.untempered(rows, []), rows.softmax(-1))
        assert sampling.plain is None


def test_penalties_are_those_of_llama_cpp(theirs):
    given = settings(repeat_penalty=1.3, frequency_penalty=0.4, presence_penalty=-0.2)
    row = 3 * torch.randn(theirs.n_vocab(), generator=torch.Generator().manual_seed(1))
    generated = [5, 9, 5, *range(20, 84)]  # the first three are 64 tokens back
    for tokens in ([], GENERATED, generated):
        penalties = Penalties(len(PROMPT), 64, 1.3, 0.4, -0.2)
        ours = LlamaSampling(SamplingParams(), [penalties])(row.unsqueeze(0), PROMPT + tokens)[0]
        torch.testing.assert_close(ours, chain(theirs, row, tokens, **given), atol=2e-6, rtol=1e-5)


def test_every_row_sees_the_tokens_before_it():
    seen = []

    def processor(ids, scores):
        seen.append(ids.tolist())
        scores[0] = 50.0  # its own copy
        return scores

    rows = torch.zeros(2, 4)
    probs = LlamaSampling(SamplingParams(), [row_processor(processor), LogitBias({1: 60}, 4)])(rows, [7, 8, 9])
    assert seen == [[7, 8], [7, 8, 9]]
    assert probs.argmax(-1).tolist() == [1, 1]
    assert not rows.any()


@pytest.mark.parametrize("bias", [{"x": 1}, {-1: 1}, {9999: 1}, {1: "much"}, [1]])
def test_a_bias_of_what_is_no_token_is_refused(bias):
    with pytest.raises((TypeError, ValueError), match="logit_bias"):
        LogitBias(bias, 500)


GRAMMAR = 'root ::= [0-9]+ (" " [a-z]+)*'


def test_a_grammar_masks_what_llama_cpp_masks(theirs, ours):
    grammar = LlamaGrammar.from_string(GRAMMAR, verbose=False)
    digit = theirs.tokenize(b"7", add_bos=False)[-1]
    row = torch.randn(theirs.n_vocab(), generator=torch.Generator().manual_seed(2))
    mask = GrammarMask(ours._pair.target.model, grammar, len(PROMPT))
    sampling = LlamaSampling(SamplingParams(), [mask])
    expected = {n: chain(theirs, row, [digit] * n, **settings(grammar=grammar)) for n in range(4)}
    for n in (0, 2, 3, 1, 0):  # forth and back, as rejections go
        probs = sampling(row.unsqueeze(0), PROMPT + [digit] * n)[0]
        torch.testing.assert_close(probs, expected[n], atol=2e-6, rtol=1e-5)
        assert 0 < (probs > 0).sum() < len(row)
    assert (expected[0] > 0).sum() < (expected[1] > 0).sum()


def test_rows_behind_a_forbidden_token_are_left_alone(theirs, ours):
    grammar = LlamaGrammar.from_string(GRAMMAR, verbose=False)
    forbidden = theirs.tokenize(b"?", add_bos=False)[-1]
    mask, row = GrammarMask(ours._pair.target.model, grammar, len(PROMPT)), torch.randn(theirs.n_vocab())
    before = mask(PROMPT, row)
    assert torch.equal(mask([*PROMPT, forbidden], row), row)
    assert torch.equal(mask([*PROMPT, forbidden, forbidden], row), row)
    assert torch.equal(mask(PROMPT, row), before)


def test_a_grammar_that_cannot_be_read_is_refused(ours):
    with pytest.raises(ValueError, match="cannot read the grammar"):
        GrammarMask(ours._pair.target.model, LlamaGrammar(_grammar="frob"), 0)
