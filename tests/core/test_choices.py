"""One of several answers: each one's exact probability, by an independent enumeration, and every wrong input."""

from __future__ import annotations

import math

import pytest
import torch
from support.chi_square import rejects
from support.constraints import json_schema
from support.tables import all_of
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel

from cactus_decoding import NgramDrafter, Pair, generate, zoo
from cactus_decoding.core.choices import MAX_OPTIONS, ChoiceTokens, check_choices, choose, enum_choices
from cactus_decoding.core.constraints.base import Grammar
from cactus_decoding.core.constraints.matching import GrammarVocabulary
from cactus_decoding.core.sampling.params import SamplingFn, SamplingParams
from cactus_decoding.engines.transformers.cached_model import CachedModel

PROMPT = "Tom has 3 pens. Ann has"
ANSWERS = ("3 pens", "3 stamps", "no pens", "no", "4")
"""Some begin alike, and one is the beginning of another."""


@pytest.fixture(scope="module")
def pair():
    """A model all of whose arithmetic is in float64: Llama's norms are not."""
    tokenizer = AutoTokenizer.from_pretrained(zoo.path("target"))
    torch.manual_seed(0)
    shape = {"n_positions": 256, "n_embd": 16, "n_layer": 2, "n_head": 2, "eos_token_id": tokenizer.eos_token_id}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), **shape)).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(12.0)
    return Pair(CachedModel(model), NgramDrafter(), tokenizer)


def tokens_of(pair, text):
    return pair.tokenizer(text, add_special_tokens=False).input_ids


@torch.inference_mode()
def whole_logprob(pair, text):
    """Return the log-probability of an answer and an end after it, by one plain pass over all of it."""
    prompt, answer = pair.tokenizer(PROMPT).input_ids, tokens_of(pair, text)
    rows = pair.target.model(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 :].log_softmax(-1)
    return sum(rows[i, token].item() for i, token in enumerate([*answer, pair.stop_token_ids[0]]))


class ChainsOnly:
    """A model that cannot read trees, as recurrent ones cannot."""

    max_leaves = 1

    def __init__(self, model):
        self._model, self.passes = model, 0

    def __getattr__(self, name):
        return getattr(self._model, name)

    def append(self, *given, **named):
        assert len(given) + len(named) == 2
        self.passes += 1
        return self._model.append(*given, **named)


def outcome_of(pair, target, answers, sampling=None):
    tokens = ChoiceTokens.of(answers, pair.tokenizer, pair.stop_token_ids)
    plain, generator = SamplingFn(sampling or SamplingParams()), torch.Generator().manual_seed(0)
    (outcome,) = choose(target, pair.tokenizer(PROMPT).input_ids, tokens, plain, plain, generator, 99)
    return outcome


@pytest.mark.parametrize("trees", [True, False], ids=["a tree", "chains"])
def test_each_answer_has_its_exact_probability(pair, trees):
    target = pair.target if trees else ChainsOnly(pair.target)
    choices = outcome_of(pair, target, ANSWERS).choices
    expected = [whole_logprob(pair, text) for text in ANSWERS]
    assert [choice.text for choice in choices] == [*ANSWERS]
    assert [choice.logprob for choice in choices] == pytest.approx(expected, abs=1e-12)
    total = math.fsum(map(math.exp, expected))
    shares = [math.exp(each) / total for each in expected]
    assert [choice.probability for choice in choices] == pytest.approx(shares, abs=1e-12)


def test_many_answers_are_read_in_groups(pair):
    answers = tuple(f"{n} pens" for n in range(60))
    some, all_alone = (outcome_of(pair, target, answers) for target in (pair.target, ChainsOnly(pair.target)))
    expected = [whole_logprob(pair, text) for text in answers]
    for outcome in (some, all_alone):
        assert [choice.logprob for choice in outcome.choices] == pytest.approx(expected, abs=1e-12)


def masked_law(pair, answers):
    """Return the distribution of masking token by token, which renormalises at each token."""
    prompt, end = pair.tokenizer(PROMPT).input_ids, pair.stop_token_ids[0]
    wholes = [(*tokens_of(pair, text), end) for text in answers]
    law = []
    for whole in wholes:
        chance = 1.0
        for n, token in enumerate(whole):
            allowed = sorted({other[n] for other in wholes if other[:n] == whole[:n] and len(other) > n})
            with torch.inference_mode():
                row = pair.target.model(torch.tensor([[*prompt, *whole[:n]]])).logits[0, -1].softmax(-1)
            chance *= (row[token] / row[allowed].sum()).item()
        law.append(chance)
    assert math.fsum(law) == pytest.approx(1, abs=1e-12)
    return law


def test_masking_token_by_token_follows_another_distribution(pair):
    exact = [choice.probability for choice in outcome_of(pair, pair.target, ANSWERS).choices]
    masked = masked_law(pair, ANSWERS)
    assert sum(abs(p - q) for p, q in zip(exact, masked, strict=True)) / 2 > 0.05
    # which is what a grammar of the same answers gives
    vocabulary = GrammarVocabulary.of(pair.tokenizer, pair.target.vocabulary_size, pair.stop_token_ids)
    constraint = vocabulary.constraint(Grammar("regex", "|".join(ANSWERS), "it"))
    texts = [generate(pair, PROMPT, seed=seed, response_format=constraint.copy()).text for seed in range(10)]
    assert set(texts) <= set(ANSWERS)


def test_answers_are_drawn_by_their_probabilities(pair):
    """Rejects a right sampler with probability 1e-6; the distribution of masking is rejected."""
    drawn = [ANSWERS.index(generate(pair, PROMPT, choices=ANSWERS, seed=seed).text) for seed in range(600)]
    exact = [choice.probability for choice in outcome_of(pair, pair.target, ANSWERS).choices]
    assert not rejects(torch.tensor(drawn), torch.tensor(exact))
    assert rejects(torch.tensor(drawn), torch.tensor(masked_law(pair, ANSWERS)))


@all_of(
    "sampling, law",
    [
        ({"temperature": 0}, lambda p: [float(each == max(p)) for each in p]),
        ({"temperature": 0.5}, lambda p: [each**2 for each in p]),
        ({"top_k": 2}, lambda p: [each * (each >= sorted(p)[-2]) for each in p]),
        ({"temperature": 2, "top_k": 3}, lambda p: [each**0.5 * (each >= sorted(p)[-3]) for each in p]),
    ],
)
def test_temperature_and_cuts_apply_to_whole_answers(pair, sampling, law):
    """Rejects a right sampler with probability 1e-6."""
    drawn = [ANSWERS.index(generate(pair, PROMPT, choices=ANSWERS, seed=seed, **sampling).text) for seed in range(150)]
    exact = torch.tensor(law([choice.probability for choice in outcome_of(pair, pair.target, ANSWERS).choices]))
    assert not rejects(torch.tensor(drawn), exact / exact.sum())


def test_a_response_of_choices_is_a_response(pair):
    response = generate(pair, PROMPT, choices=ANSWERS, seed=3, rule="cactus:delta=1", budget=0.1)
    assert response.text in ANSWERS
    assert response.token_ids == [*tokens_of(pair, response.text), pair.stop_token_ids[0]]
    assert (response.finish_reason, response.metrics.steps, response.metrics.nats) == ("stop", 1, 0)
    assert len(response.fates) == len(response.token_ids)
    assert generate(pair, PROMPT, choices=ANSWERS, seed=3).text == response.text
    # what follows reads on after the prompt
    again = generate(pair, PROMPT, seed=1, max_new_tokens=20)
    pair.forget()
    assert generate(pair, PROMPT, seed=1, max_new_tokens=20).text == again.text


def test_an_enum_alone_is_a_choice_and_more_than_that_is_not(pair):
    form = json_schema({"enum": ["red", 3, None, {"a": [1, 2]}], "description": "a colour"})
    assert enum_choices(form) == ('"red"', "3", "null", '{"a": [1, 2]}')
    assert enum_choices(json_schema({"const": 'say "hi"'})) == ('"say \\"hi\\""',)
    response = generate(pair, PROMPT, response_format=form, seed=1)
    assert [choice.text for choice in response.choices] == [*enum_choices(form)]
    for other in ({"enum": ["a"], "type": "string"}, {"type": "string"}, True, {"enum": [*range(MAX_OPTIONS + 1)]}):
        assert enum_choices(json_schema(other)) is None
    assert enum_choices({"type": "json_object"}) is enum_choices(None) is None


@all_of(
    "choices, error, message",
    [
        ("yes", TypeError, "choices must be a list of texts, but is 'yes'"),
        (["yes", 3], TypeError, r"choices must be a list of texts, but is \['yes', 3\]"),
        ([], ValueError, r"choices must be 1 to 256 texts that are not empty, but is \[\]"),
        (["yes", ""], ValueError, "choices must be 1 to 256 texts"),
        ([str(n) for n in range(257)], ValueError, "choices must be 1 to 256 texts"),
        (["a", "b", "a"], ValueError, "choices must be different texts, but has 'a' twice"),
        (["a" * 20000], ValueError, "choices may have 16,384 characters together, but has 20,000"),
        (["no" * 300, "yes" * 300], ValueError, "choices may have 512 tokens together"),
        (["<eos>"], ValueError, "the model cannot write the choice '<eos>'"),
        (["no " * 40], ValueError, "the longest of the choices has [0-9]+ tokens, but max_new_tokens is 20"),
    ],
)
def test_wrong_choices_are_refused_by_a_sentence(pair, choices, error, message):
    with pytest.raises(error, match=message):
        generate(pair, PROMPT, choices=choices, max_new_tokens=20)


def test_no_stop_cuts_an_answer(pair):
    with pytest.raises(ValueError, match="choices are whole answers, but stop has 'pen', which would cut '4 pens'"):
        generate(pair, PROMPT, choices=["none", "4 pens"], stop=["\n", "pen"])
    assert generate(pair, PROMPT, choices=["none", "4 pens"], stop=["\n"], seed=1).text in ("none", "4 pens")


def test_choices_and_a_form_exclude_each_other(pair):
    with pytest.raises(TypeError, match="choices and response_format exclude each other"):
        generate(pair, PROMPT, choices=["a", "b"], response_format={"type": "json_object"})
    with pytest.raises(ValueError, match="the prompt must be shorter than the target's 256 positions"):
        generate(pair, "pens " * 250, choices=["3 pens and 4 pens"])
    assert check_choices(("a", "b")) == ("a", "b")
