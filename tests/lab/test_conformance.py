"""This package's engines answer cactus-conform's questions."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from cactus_conform import Engine, Query, Sampling, conform
from cactus_conform.checks import Check
from cactus_conform.processing import distribution
from cactus_conform.truth import Truth

from cactus_decoding import SamplingParams
from cactus_decoding.lab.conformance import CactusEngine, CactusLlamaEngine

ENGINES = {"cactus": CactusEngine, "cactus-llama": CactusLlamaEngine}
CUTS = (
    {"temperature": 0.7},
    {"top_k": 3},
    {"top_p": 0.8},
    {"min_p": 0.15},
    {"temperature": 1.4, "top_k": 6, "top_p": 0.9, "min_p": 0.05},
    {"temperature": 0.0},
)


def test_engines_are_found_by_their_entry_points():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    places = {name: place.split(":") for name, place in project["entry-points"]["cactus_conform.engines"].items()}
    found = {name: getattr(import_module(module), of) for name, (module, of) in places.items()}
    assert found == ENGINES
    assert all(issubclass(each, Engine) for each in found.values())


@pytest.mark.parametrize("settings", CUTS, ids=str)
def test_sampling_is_what_conformance_expects(settings):
    logits = 2 * np.random.default_rng(0).normal(size=(200, 10))
    expected = distribution(logits, Sampling(**settings)).probs
    np.testing.assert_allclose(SamplingParams(**settings)(torch.from_numpy(logits)).numpy(), expected, atol=1e-12)


@pytest.mark.parametrize("name", ENGINES)
def test_engines_forget_a_cancelled_request(name):
    engine = ENGINES[name]()
    for draft in ("bad", "ngram"):
        sampling = Sampling(draft=draft, temperature=0.7, stop_token_ids=(7,))
        plain, cancelled = (Query((1, 2, 3), replace(sampling, cancels=each), 5) for each in (False, True))
        answer = engine.one(plain)
        assert answer.token_ids == engine.one(cancelled).token_ids
        assert answer.accepted is not None
    engine.close()


def test_log_probabilities_of_cactus_llama_are_the_target_s():
    engine, sampling = CactusLlamaEngine(), Sampling(draft="bad", temperature=0.7)
    answer = engine.one(Query((1, 2, 3), sampling, 5))
    rows = Truth(temperature_last=True, ends_alike=True).score((1, 2, 3), [answer.token_ids], sampling)
    expected = np.log(np.take_along_axis(rows.raw_target, rows.tokens[:, None], -1)[:, 0])
    np.testing.assert_allclose(answer.logprobs, expected[: len(answer.logprobs)], atol=1e-4)
    engine.close()


def test_a_relaxed_rule_is_called_wrong_and_lossless_is_not():
    """The right one fails by chance with probability 0.001 at most; seeds are fixed."""
    only = [Check("temperature 1, bad draft", Sampling(draft="bad"))]
    for settings, right in (({}, True), ({"rule": "cactus:delta=1"}, False)):
        engine = CactusEngine(settings)
        report = conform(engine, samples=60, only=only)
        engine.close()
        assert report.right is right
        assert report.acceptance or not right
