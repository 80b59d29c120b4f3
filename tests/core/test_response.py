"""`begin` beside the loop set up by hand: the same steps for every kind of rows, and what it decides on its own."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
import torch
from support.chi_square import rejects
from support.exact_enumeration import enumerate_tokens
from support.loop_runs import PROMPT, decided
from support.tables import all_of
from support.tiny_architectures import letter_tokenizer
from transformers import GenerationConfig, LogitsProcessorList
from transformers.generation import logits_process

from cactus_decoding import Metrics, ModelDrafter, NgramDrafter, Request, SamplingParams, parse_rule
from cactus_decoding.core.loop import decode
from cactus_decoding.core.models.base import Cancelled
from cactus_decoding.core.pair import Models
from cactus_decoding.core.response import begin
from cactus_decoding.core.sampling.params import SamplingFn
from cactus_decoding.core.verification.walk import Verifier
from cactus_decoding.engines.llama_cpp.sampling import LlamaSampling, Penalties
from cactus_decoding.engines.transformers.generate_arguments import ProcessedProbs

LETTERS = letter_tokenizer("abcdefgh")
CUT, GREEDY = SamplingParams(0.7, top_k=5, top_p=0.9), SamplingParams(temperature=0)
ASKED = Request("cactus:delta=0.5", 0.4, num_speculative_tokens=4, max_new_tokens=30, seed=3)
PHASES = Request.from_dict({"relax_within": ["<", ">"]})
PENALTIES = Penalties(len(PROMPT), 64, 1.5, 0.3, 0.1)


def processed(config: GenerationConfig) -> ProcessedProbs:
    given = LogitsProcessorList([logits_process.RepetitionPenaltyLogitsProcessor(1.7)])
    return ProcessedProbs(given, config, torch.tensor([PROMPT]), 0)


ROWS = {
    "ours": (CUT, SamplingFn(CUT)),
    "llama.cpp's order": (CUT, LlamaSampling(CUT)),
    "llama.cpp's penalties": (CUT, LlamaSampling(CUT, [PENALTIES])),
    "greedy with llama.cpp's penalties": (GREEDY, LlamaSampling(GREEDY, [PENALTIES])),
    "processors": (SamplingParams(), processed(GenerationConfig(do_sample=True))),
    "greedy with processors": (GREEDY, processed(GenerationConfig(do_sample=False))),
}


def steps(target, drafter, request, token_ids=PROMPT, **given):
    return list(begin(Models(target, drafter, LETTERS), request, token_ids, **given))


@pytest.mark.parametrize("case", ROWS)
@all_of("rule", ["lossless", "cactus:delta=0.5", "relaxed_greedy:margin=1"])
def test_steps_and_rows_are_those_of_a_loop_set_up_by_hand(target, draft, case, rule):
    sampling, rows = ROWS[case]
    if rule.startswith("relaxed_greedy") and sampling.temperature > 0:
        with pytest.raises(ValueError, match="temperature 0"):
            Request(rule, sampling=sampling)
        return
    request = Request(rule, 0.4, num_speculative_tokens=4, sampling=sampling, max_new_tokens=30, seed=3)
    greedy = sampling.temperature == 0
    verifier = Verifier(request.rule, rows, rows.untempered, rows.plain, request.budget, greedy=greedy)
    by_hand = decode(
        target, ModelDrafter(draft), PROMPT, verifier, rows, draft_length=request.num_speculative_tokens,
        max_length=len(PROMPT) + 30, stopping_criteria=lambda ids: False,
        generator=torch.Generator().manual_seed(3),
    )  # fmt: skip
    expected, ours = list(by_hand), steps(target, ModelDrafter(draft), request, sampling=rows)
    assert decided(ours) == decided(expected)
    assert [step.nats for step in ours] == [step.nats for step in expected]
    for step in ours:
        text = step.rows.text(-1)
        assert torch.equal(step.rows.target_after(-1), rows(step.rows.logits[:1], text)[0])
    if rows.plain is None:  # the request's own sampling, in this package's order, writes something else
        assert decided(steps(target, ModelDrafter(draft), request)) != decided(expected)
    else:
        assert decided(steps(target, ModelDrafter(draft), request)) == decided(expected)


def test_random_numbers_come_from_the_seed_the_generator_or_torch(target, draft):
    def tokens(seed, **given):
        return decided(steps(target, ModelDrafter(draft), ASKED.replace(seed=seed), **given))

    assert tokens(3) == tokens(3) != tokens(4)
    assert tokens(4, generator=torch.Generator().manual_seed(3)) == tokens(3)
    assert tokens(None) != tokens(None)  # equal for one of 8**30 at most, were rows even
    torch.manual_seed(3)
    state = torch.get_rng_state()
    assert tokens(4) == tokens(4)
    assert torch.equal(torch.get_rng_state(), state)
    first = tokens(4, generator=None)
    assert not torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(3)
    assert tokens(5, generator=None) == first


def distribution_of_two(models, rule, budget):
    """Return how likely each two tokens are, ``[8 * 8]``, by all drafted tokens' turns and what a budget is for."""

    def after(text, left):
        with torch.no_grad():
            q, p = (model(torch.tensor([text])).logits[:, -1].softmax(-1) for model in models)
        emitted, lossless = (enumerate_tokens(parse_rule(each), q, p)[0][0] for each in (rule, "lossless"))
        nats = float((emitted * (emitted / q[0]).log()).sum())
        return (emitted, left - nats) if nats <= left else (lossless, left)

    first, left = after(PROMPT, budget)
    return torch.cat([first[x] * after([*PROMPT, x], left)[0] for x in range(len(first))])


@pytest.mark.slow
def test_two_tokens_follow_the_distribution_of_a_relaxed_rule_within_its_budget(target, draft):
    """The first position costs 0.05 nats, and after the likeliest token the second 0.18: only together too much.

    A right loop fails with probability 1e-6, as `rejects` says; the wrong variants spend nothing, or without a limit.
    """
    rule, drafter, seen = "clamped:width=2", ModelDrafter(draft), []
    for seed in range(1500):
        request = Request(rule, 0.2, num_speculative_tokens=3, max_new_tokens=6, seed=seed)
        response = begin(Models(target, drafter, LETTERS), request, PROMPT)
        while len(response.token_ids) < 2:
            next(response)
        seen.append(8 * response.token_ids[0] + response.token_ids[1])
    for budget, refuted in ((0.2, False), (0.0, True), (1e9, True)):
        law = distribution_of_two((target.model, draft), rule, budget)
        assert rejects(torch.tensor(seen), law) == refuted, budget


def test_no_step_is_taken_before_it_is_asked_for_nor_after_it_is_closed(target, draft):
    target.reset()
    response = begin(Models(target, ModelDrafter(draft), LETTERS), ASKED, PROMPT, first_alone=True)
    assert (target.length, response.token_ids, response.metrics) == (0, [], Metrics())
    first, second = next(response), next(response)
    assert (first.num_drafted, second.num_drafted) == (0, 4)
    assert response.prompt_token_ids == PROMPT
    assert response.fates == [*first.fates, *second.fates]
    counted = Metrics.of(first) + Metrics.of(second)
    assert replace(response.metrics, seconds=0) == counted
    assert response.metrics.seconds > 0
    response.close()
    assert list(response) == []
    assert response.finish_reason is None


def test_one_response_runs_on_its_models_until_it_is_finished_closed_or_dropped(target, draft):
    models, expected = Models(target, ModelDrafter(draft), None), steps(target, ModelDrafter(draft), ASKED)

    def begun(**given):
        return begin(models, ASKED, PROMPT, stop=lambda ids: False, **given)

    for leave in (list, lambda response: response.close(), lambda response: None):
        first = begun()
        next(first)
        with pytest.raises(RuntimeError, match="one response at a time"):
            next(begun())
        leave(first)
        del first
        assert decided([*begun()]) == decided(expected)
    cancelled = threading.Event()
    first = begun(cancelled=cancelled)
    next(first)
    cancelled.set()
    with pytest.raises(Cancelled):
        next(first)
    assert decided([*begun()]) == decided(expected)  # which the event does not end
    with pytest.raises(TypeError, match="without a tokenizer"):
        _ = first.text


@all_of(
    "given, error, said",
    [
        ({"request": ASKED.replace(num_speculative_tokens=64)}, ValueError, "must be below the target's 64 positions"),
        ({"token_ids": [1] * 64}, ValueError, "must be shorter than the target's 64 positions, but has 64"),
        ({"token_ids": [1] * 9, "max_length": 9}, ValueError, "shorter than the target's 9 positions"),
        ({"token_ids": []}, ValueError, "at least one token"),
        ({"request": Request("clamped:width=1", verification="block")}, ValueError, "needs a draft model"),
        ({"drafter": object()}, TypeError, "drafter must be a subclass"),
        ({"tokenizer": None}, TypeError, "tokenizer must be given where stop is None"),
        ({"tokenizer": None, "stop": bool, "request": PHASES}, TypeError, "tokenizer"),
    ],
)
def test_what_cannot_be_answered_is_refused_before_a_step(target, given, error, said):
    given = {"drafter": NgramDrafter(), "request": ASKED, "token_ids": PROMPT, "tokenizer": LETTERS} | given
    models = Models(target, given.pop("drafter"), given.pop("tokenizer"))
    with pytest.raises(error, match=said):
        begin(models, given.pop("request"), given.pop("token_ids"), **given)
