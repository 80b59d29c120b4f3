"""`begin` beside the loop set up by hand: the same steps for every kind of rows, and what it decides on its own."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.loop_runs import PROMPT, decided
from support.tables import all_of
from support.tiny_architectures import letter_tokenizer
from transformers import GenerationConfig, LogitsProcessorList
from transformers.generation import logits_process

from cactus_decoding import Metrics, ModelDrafter, NgramDrafter, Request, SamplingParams
from cactus_decoding.core.loop import decode
from cactus_decoding.core.sampling.params import SamplingFn
from cactus_decoding.core.session import begin
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
    return list(begin(target, drafter, request, token_ids, tokenizer=LETTERS, **given))


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
        target, ModelDrafter(draft), PROMPT, verifier, rows, length=request.num_speculative_tokens,
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


def test_no_step_is_taken_before_it_is_asked_for_nor_after_it_is_closed(target, draft):
    target.reset()
    session = begin(target, ModelDrafter(draft), ASKED, PROMPT, tokenizer=LETTERS, first_alone=True)
    assert (target.length, session.token_ids, session.metrics) == (0, [], Metrics())
    first, second = next(session), next(session)
    assert (first.num_drafted, second.num_drafted) == (0, 4)
    assert session.prompt_token_ids == PROMPT
    assert session.fates == [*first.fates, *second.fates]
    counted = Metrics.of(first) + Metrics.of(second)
    assert replace(session.metrics, seconds=0) == counted
    assert session.metrics.seconds > 0
    session.close()
    assert list(session) == []
    assert session.finish_reason is None


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
    with pytest.raises(error, match=said):
        begin(target, **given)
