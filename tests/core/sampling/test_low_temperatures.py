"""Temperatures by which float32 cannot divide, and near-ties that a softmax merges: greedy decoding by the logits."""

from __future__ import annotations

import math

import pytest
import torch
from support.tables import all_of
from transformers import GenerationConfig, LogitsProcessorList
from transformers.generation.logits_process import RepetitionPenaltyLogitsProcessor, TemperatureLogitsWarper

from cactus_decoding import NgramDrafter, Proposal, Request, SamplingParams, generate, speculative_generate
from cactus_decoding.core.rules.base import verdict_on
from cactus_decoding.core.sampling.params import LARGE_VOCABULARY, SamplingFn
from cactus_decoding.engines.transformers.generate_arguments import ProcessedProbs
from cactus_decoding.zoo.word_problems import word_problems

TINY = [5e-324, 1e-310, 1e-46, 1e-45, 1e-40, 1e-38, 1e-37, 1e-30, 1e-21]
LOW = [1e-20, 1e-15, 1e-10, 1e-6, 1e-3]
VOCABULARIES = (9, LARGE_VOCABULARY + 5)


def rows_with_ties(vocabulary: int) -> torch.Tensor:
    """Return rows whose greatest logit is attained once, twice, and by all; large ones, too."""
    rows = torch.randn(4, vocabulary, generator=torch.Generator().manual_seed(0))
    rows[1, [2, 5]] = rows[1].max() + 1
    rows[2] = 3.0
    rows[3, [4, 7]] = 3e4
    return rows


@all_of("temperature", TINY)
@all_of("cuts", [{}, {"top_k": 3}, {"top_p": 0.9}, {"min_p": 0.1}])
@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_a_temperature_that_float32_cannot_divide_by_is_greedy(temperature: float, cuts: dict, vocabulary: int) -> None:
    sampling, rows = SamplingParams(temperature, **cuts), rows_with_ties(vocabulary)
    assert sampling.temperature == 0
    for kind in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        probs = sampling(rows.to(kind))
        assert torch.equal(probs.argmax(-1), rows.to(kind).argmax(-1))
        assert torch.equal(probs.amax(-1), torch.ones(4, dtype=probs.dtype))


@all_of("temperature", LOW)
@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_above_that_rows_are_distributions_and_ties_share(temperature: float, vocabulary: int) -> None:
    for cuts in ({}, {"top_k": 3}, {"top_p": 0.9}, {"min_p": 0.1}):
        probs = SamplingParams(temperature, **cuts)(rows_with_ties(vocabulary))
        assert probs.isfinite().all()
        torch.testing.assert_close(probs.sum(-1), torch.ones(4), rtol=0, atol=1e-4)
    for row, tied in ((1, [2, 5]), (3, [4, 7])):
        shares = SamplingParams(temperature)(rows_with_ties(vocabulary))[row]
        assert shares[tied[0]] == shares[tied[1]]
        if temperature < 1e-2:
            assert shares[tied].sum() == pytest.approx(1, abs=1e-5)


@all_of("temperature", [1e30, 1e38, 1e39, 1e300])
def test_temperatures_that_float32_cannot_hold_give_uniform_rows_of_what_is_allowed(temperature: float) -> None:
    row = torch.tensor([[1.0, -math.inf, 2.0]])
    torch.testing.assert_close(SamplingParams(temperature)(row), torch.tensor([[0.5, 0.0, 0.5]]))


@all_of("temperature", TINY)
def test_responses_at_such_temperatures_are_greedy_in_the_loop_and_in_transformers(pair, temperature: float) -> None:
    prompt = next(word_problems("validation", seed=1)).prompt
    settings = {"rule": "cactus:delta=1", "max_new_tokens": 12, "seed": 0}
    greedy = generate(pair, prompt, temperature=0, **settings).token_ids
    assert generate(pair, prompt, temperature=temperature, **settings).token_ids == greedy
    inputs = pair.tokenizer(prompt, return_tensors="pt", return_token_type_ids=False)
    model, length = pair.target.model, inputs.input_ids.shape[1]
    for further in ({}, {"no_repeat_ngram_size": 30}):  # the latter is no plain sampling: processors make the rows
        ids = model.generate(
            **inputs,
            custom_generate=speculative_generate,
            drafter=NgramDrafter(),
            do_sample=True,
            temperature=temperature,
            top_k=0,
            max_new_tokens=12,
            seed=0,
            **further,
        )
        assert ids[0, length:].tolist() == greedy


def test_processors_behind_a_tiny_temperature_still_count() -> None:
    config = GenerationConfig(do_sample=True)
    penalty = RepetitionPenaltyLogitsProcessor(10.0)
    processors = LogitsProcessorList([penalty, TemperatureLogitsWarper(1e-40)])
    probs = ProcessedProbs(processors, config, torch.tensor([[1]]), 0)(torch.tensor([[1.0, 3.0, 2.0]]), [1])
    assert probs.tolist() == [[0, 0, 1]]


# --- near-ties ---


def near_tie(vocabulary: int = 6) -> torch.Tensor:
    """Return logits of which the greatest is the least bit above another that comes first, as no softmax shows."""
    row = torch.full((vocabulary,), -2.0)
    row[1] = 0.25
    row[3] = torch.nextafter(row[1], torch.tensor(1.0))
    row[4] = 0.2
    return row


def judged(rule: str, row: torch.Tensor, token: int, budget: float | None = None, draft: torch.Tensor | None = None):
    """Return what a request at temperature 0 makes of one proposal, whose row and the next are the same."""
    greedy, plain = SamplingParams(temperature=0), SamplingParams()
    request = Request(rule, budget, sampling=greedy)
    verifier = request.verifier(SamplingFn(greedy), SamplingFn(plain), greedy)
    return verifier(verifier.begin(), torch.stack([row, row]), [0, token], Proposal([token], draft), None)[1]


@all_of("rule", ["relaxed_greedy:margin=0", "relaxed_greedy:margin=5,top=1", "lossless"])
@all_of("budget", [None, 0.0, 1.0, math.inf])
def test_margin_zero_chooses_by_logits(rule: str, budget: float | None) -> None:
    row, softmax = near_tie(), near_tie().softmax(-1)
    best, other = int(row.argmax()), 1
    assert softmax[best] == softmax[other], "a softmax that tells them apart would show nothing"
    for token, kept in ((best, 1), (other, 0), (4, 0)):
        for draft in (torch.eye(6)[token : token + 1], None):
            outcome = judged(rule, row, token, budget, draft)
            assert (outcome.num_accepted, outcome.next_token) == (kept, best)
            assert verdict_on(outcome.visits[0]).relaxed_prob.item() == kept


def test_among_equal_logits_the_first_is_chosen() -> None:
    for token in (1, 2, 3):
        outcome = judged("relaxed_greedy:margin=0", torch.tensor([0.0, 2.0, 2.0, 2.0]), token)
        assert (outcome.num_accepted, outcome.next_token) == (int(token == 1), 1)


def test_near_ties_of_a_whole_response() -> None:
    """Logits and their next neighbours: many rows have a near-tie, and each token is the logits' argmax."""
    generator = torch.Generator().manual_seed(3)
    logits = torch.randint(0, 3, (64, 7), generator=generator).float() / 8
    nudged = torch.where(torch.rand(64, 7, generator=generator) < 0.5, torch.nextafter(logits, logits + 1), logits)
    assert (nudged.softmax(-1).argmax(-1) != nudged.argmax(-1)).sum() > 5
    for row in nudged:
        assert judged("relaxed_greedy:margin=0", row, 1).all_token_ids[0] == int(row.argmax())
