"""The distributions that engines are held to, by a second hand."""

import itertools

import numpy as np
import pytest
import torch
from cactus_conform.engine import Sampling
from cactus_conform.evidence import deviation_not_excluded
from cactus_conform.models import END, NAMES, PROMPTS, VOCABULARY, TinyModel, write_models
from cactus_conform.processing import distribution, penalised
from cactus_conform.truth import Truth
from transformers import AutoModelForCausalLM, AutoTokenizer

CUTS = (
    ({"temperature": 0.5}, [0.36, 0.16, 0.0025, 0.0225]),
    ({"top_k": 2}, [0.6, 0.4, 0, 0]),
    ({"top_p": 0.9}, [0.6, 0.4, 0, 0.15]),
    ({"min_p": 0.1}, [0.6, 0.4, 0, 0.15]),
    ({"temperature": 0.5, "top_k": 3, "top_p": 0.97}, [0.36, 0.16, 0, 0.0225]),
    ({"temperature": 0.0}, [1, 0, 0, 0]),
)


@pytest.fixture(scope="module")
def truth():
    return Truth()


@pytest.mark.parametrize(("settings", "weights"), CUTS, ids=str)
def test_cuts_by_hand(settings, weights):
    logits = np.log([[0.6, 0.4, 0.05, 0.15]])
    expected = np.array([weights]) / np.sum(weights)
    np.testing.assert_allclose(distribution(logits, Sampling(**settings)).probs, expected, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_the_models_are_those_that_transformers_reads(name, tmp_path):
    """transformers rounds norms and rotations to float32, which the sharp head of one draft makes 200 times larger."""
    folder = write_models(tmp_path) / name
    model = AutoModelForCausalLM.from_pretrained(folder).double()
    ids = [1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2]
    expected = model(torch.tensor([ids])).logits[0].detach().numpy()
    found, short = TinyModel(name).logits([ids, ids[:3]])
    np.testing.assert_allclose(found, expected, atol=1e-3 if name == "deterministic" else 5e-6)
    np.testing.assert_allclose(short, found[:3], atol=1e-12)
    assert AutoTokenizer.from_pretrained(folder)("abci").input_ids == [1, 2, 3, 9]


def test_a_temperature_after_the_cuts_cuts_otherwise():
    logits, sampling = np.log([[0.6, 0.25, 0.15]]), Sampling(temperature=2.0, top_p=0.8)
    expected = np.array([0.6**0.5, 0.25**0.5, 0])
    assert (distribution(logits, sampling).probs > 0).sum() == 3
    found = distribution(logits, sampling, temperature_last=True).probs[0]
    np.testing.assert_allclose(found, expected / expected.sum())


def test_a_row_near_a_cut_is_left_out():
    logits = np.log([[0.5, 0.3, 0.2], [0.5, 0.25, 0.25], [0.8, 0.1, 0.1]])
    assert distribution(logits, Sampling(top_k=2)).clear.tolist() == [True, False, False]
    assert distribution(logits, Sampling(top_p=0.8)).clear.tolist() == [False, True, False]


def test_penalties_by_hand():
    logits, counts = np.array([[2.0, -2.0, 1.0]]), np.array([[2.0, 1.0, 0.0]])
    prompt = np.array([[1.0, 1.0, 0.0]])
    sampling = Sampling(repetition_penalty=2.0, presence_penalty=0.5, frequency_penalty=0.25, logit_bias=((2, 1.0),))
    np.testing.assert_allclose(penalised(logits, counts, prompt, sampling), [[1 - 0.75, -4, 2]])
    np.testing.assert_allclose(penalised(logits, counts, prompt, sampling, penalises_prompt=False), [[1 - 0.75, -2, 2]])


def test_a_grammar_leaves_its_letters_and_the_end(truth):
    row = truth.enumerate(PROMPTS[0], Sampling(letters="be"), 1)
    free = truth.enumerate(PROMPTS[0], Sampling(), 1)
    assert {key for (key,) in row} == {END, 2, 5}
    share = sum(free[key] for key in row)
    assert row == pytest.approx({key: free[key] / share for key in row}, abs=1e-12)


def test_the_distribution_of_three_tokens_is_that_of_plain_passes(truth):
    prompt, sampling = PROMPTS[0], Sampling(temperature=0.8)
    found = truth.enumerate(prompt, sampling)
    assert sum(found.values()) == pytest.approx(1, abs=1e-12)
    model, expected = TinyModel("target"), {}

    def row(prefix):
        return np.exp(model.logits([prefix])[0][-1] / 0.8) / np.exp(model.logits([prefix])[0][-1] / 0.8).sum()

    first = row(prompt)
    for x, y in itertools.product((1, 4), (2, 5)):
        second, third = row((*prompt, x)), row((*prompt, x, y))
        expected |= {(x, y, z): first[x] * second[y] * third[z] for z in range(VOCABULARY)}
    assert {key: found[key] for key in expected} == pytest.approx(expected, abs=1e-12)
    assert found[(END,)] == pytest.approx(first[END])


def test_ends_that_are_not_told_apart_add_up(truth):
    sampling = Sampling(stop_token_ids=(7, 2), top_k=8)
    apart, alike = truth.enumerate(PROMPTS[0], sampling), Truth(ends_alike=True).enumerate(PROMPTS[0], sampling)
    expected = dict.fromkeys(alike, 0.0)
    for output, probability in apart.items():
        expected[(*output[:-1], END) if output[-1] in sampling.ends else output] += probability
    assert alike == pytest.approx(expected, abs=1e-12)
    rows = Truth(ends_alike=True).score(PROMPTS[0], [(9, END)], sampling)
    assert rows.target[0, END] == pytest.approx(alike[END,])
    assert (rows.target[:, [2, 7]] == 0).all()


def test_deviations_are_bounded_and_bounds_hold():
    """Over 200 seeds the bound fails with probability 0.01 each: 9 failures or more have probability 2e-4."""
    generator, shares = np.random.default_rng(0), np.array([0.5, 0.2, 0.2, 0.1])
    claimed = np.array([0.4, 0.3, 0.2, 0.1])
    bounds = [deviation_not_excluded(claimed, generator.multinomial(2000, shares), 0.01) for _ in range(200)]
    assert sum(bound < 0.1 for bound in bounds) < 9
    assert np.mean(bounds) < 0.18
    assert deviation_not_excluded(shares, generator.multinomial(50_000, shares), 0.01) < 0.02
    assert deviation_not_excluded(shares, np.zeros(4), 0.01) == 1
