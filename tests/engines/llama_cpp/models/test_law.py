"""What the loop emits through llama.cpp: greedy tokens one by one, sampled tokens by their exact law.

Each statistical test fails by chance with probability 1e-6 at most; its generator is fixed, so: always or never.
"""

from __future__ import annotations

from itertools import islice

import pytest
import torch
from llama_cpp import Llama
from support.chi_square import rejects_counts
from support.gguf_files import law_of_two, tiny_gguf, two_tokens
from support.loop_runs import DRAWS, PROMPT, begin, run, tokens
from support.tiny_models import tiny_llama

from cactus_decoding import Drafter, ModelDrafter, NgramDrafter, Proposal, SamplingParams, generate, load_pair
from cactus_decoding.zoo.word_problems import word_problems

VOCABULARY = 8
LIMIT = 0.15


@pytest.fixture(scope="module")
def models():
    return tiny_llama(0), tiny_llama(1)


@pytest.fixture(scope="module")
def target(models, tmp_path_factory):
    return tiny_gguf(models[0], tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def drafter(models, tmp_path_factory):
    return ModelDrafter(tiny_gguf(models[1], tmp_path_factory.mktemp("draft")))


@pytest.mark.parametrize("rule", ["lossless", "cactus:delta=1.0", "clamped:width=1.0", "typical"])
def test_temperature_zero_is_transformers_greedy_decoding(models, target, drafter, rule):
    plain = models[0].generate(torch.tensor([PROMPT]), do_sample=False, max_new_tokens=40, pad_token_id=0)
    for each in (drafter, NgramDrafter()):
        steps = run(target, each, rule, 4, length=43, sampling=SamplingParams(temperature=0))
        assert tokens(steps) == plain[0, 3:].tolist()


def test_temperature_zero_is_the_greedy_decoding_of_llama_cpp(gguf):
    """The other side is llama-cpp-python's own class with its own greedy sampler, on the same file."""
    path = str(gguf("target"))
    theirs = Llama(path, n_ctx=512, n_threads=1, type_k=0, type_v=0, verbose=False)
    pair = load_pair(f"{path}:cache=float32", gguf("worded"))
    for problem in islice(word_problems("validation"), 6):
        ours = generate(pair, problem.prompt, temperature=0, max_new_tokens=48).token_ids
        prompt_ids = theirs.tokenize(problem.prompt.encode(), add_bos=True, special=True)
        assert prompt_ids == pair.tokenizer(problem.prompt).input_ids
        assert list(islice(theirs.generate(prompt_ids, temp=0.0), len(ours))) == ours


RULES = ("lossless", "cactus:delta=1.0", "clamped:width=1.0")


def emitted(target, drafter, rule, **given):
    return two_tokens(lambda seed: begin(target, drafter, rule, 3, seed, length=9, **given), DRAWS, VOCABULARY)


def follows(counts, law):
    return not rejects_counts(counts, law)


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
def test_two_tokens_follow_the_law_of_the_rule(models, target, drafter, rule):
    counts = emitted(target, drafter, rule)
    assert [other for other in RULES if follows(counts, law_of_two(other, *models, PROMPT))] == [rule]


@pytest.mark.slow
def test_two_tokens_follow_the_law_of_a_budget(models, target, drafter):
    """The first position costs 0.05 nats; the second 0.18 after the likeliest token, too much, and else mostly less."""
    rule = "clamped:width=2.0"
    counts = emitted(target, drafter, rule, budget=LIMIT)
    laws = {limit: law_of_two(rule, *models, PROMPT, limit) for limit in (0.0, LIMIT, 1e9)}
    assert [limit for limit, law in laws.items() if follows(counts, law)] == [LIMIT]


class LyingDrafter(Drafter):
    """Draws from the draft but reports a flatter row."""

    def __init__(self, honest: ModelDrafter) -> None:
        self.honest = honest

    def propose(self, token_ids, limit, to_probs, generator):
        proposal = self.honest.propose(token_ids, limit, to_probs, generator)
        flatter = proposal.probs.sqrt()
        return Proposal(proposal.token_ids, flatter / flatter.sum(-1, keepdim=True))


@pytest.mark.slow
def test_a_draft_that_misreports_its_law_is_detected(models, target, drafter):
    assert not follows(emitted(target, LyingDrafter(drafter), "lossless"), law_of_two("lossless", *models, PROMPT))
