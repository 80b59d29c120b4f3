"""Mixtures of experts: the passes that `tune` and `auto` go by use as many experts as passes over real text do."""

from __future__ import annotations

from itertools import islice
from statistics import mean

import pytest
import torch
from support.gguf_files import opened
from support.mixtures import LAYERS, PER_TOKEN, experts_used, tiny_mixture, used_by, write_mixture

from cactus_decoding import NgramDrafter, Pair, load_pair
from cactus_decoding.core.drafting import measuring
from cactus_decoding.engines.transformers.cached_model import CachedModel
from cactus_decoding.zoo.word_problems import word_problems

MEASURE = measuring.measure  # before tests pretend to a machine
TOKENIZER = load_pair(draft="suffix").tokenizer


@pytest.fixture(scope="module")
def mixture():
    return tiny_mixture(len(TOKENIZER))


@pytest.fixture(scope="module")
def real(mixture):
    """Experts used by passes over real text, by their width: several places of several texts."""
    found = {}
    for problem in islice(word_problems("validation", seed=5), 4):
        text = TOKENIZER(f"{problem.prompt} {problem.solution}").input_ids
        for width in measuring.WIDTHS:
            for start in range(16, len(text) - width, 16):
                found.setdefault(width, []).append(used_by(mixture, text, start, width))
    return found


def timed(model, mixture, monkeypatch):
    """Return the experts used by each timed pass over some tokens, by their number."""
    found, append = {}, model.append

    def watched(token_ids, rows, *given):
        before = [each for each in model._token_ids]
        logits = append(token_ids, rows, *given)
        if rows == len(token_ids) and before:
            found.setdefault(rows, set()).add(used_by(mixture, [*before, *token_ids], len(before), rows))
        return logits

    monkeypatch.setattr(model, "append", watched)
    MEASURE(model, NgramDrafter())
    return {width: found[width] for width in measuring.WIDTHS}


def check_priced(found, real):
    """Whether passes used about as many experts as those over real text, and the more the wider they were."""
    assert all(len(each) == 1 for each in found.values()), "runs are compared with each other"
    counts = [min(each) for _, each in sorted(found.items())]
    assert counts == sorted(counts)
    for width, each in zip(sorted(real), counts, strict=True):
        assert min(real[width]) <= each <= max(real[width])
        assert abs(each - mean(real[width])) <= 0.25 * mean(real[width])


def test_timed_passes_of_a_mixture_use_the_experts_of_real_text(mixture, real, monkeypatch):
    model = CachedModel(mixture)
    Pair(model, NgramDrafter(), TOKENIZER, bundled=True)
    found = timed(model, mixture, monkeypatch)
    check_priced(found, real)
    assert min(found[16]) > 3 * PER_TOKEN * LAYERS


def test_one_token_repeated_would_be_priced_too_low(mixture, real, monkeypatch):
    model = CachedModel(mixture)
    model.sample_text = lambda: [7] * 40
    found = timed(model, mixture, monkeypatch)
    assert {min(each) for each in found.values()} == {PER_TOKEN * LAYERS}
    with pytest.raises(AssertionError):
        check_priced(found, real)


def test_files_of_mixtures_are_timed_on_the_same_tokens(mixture, real, tmp_path, monkeypatch):
    model = opened(write_mixture(mixture, tmp_path / "mixture.gguf"))
    ids = TOKENIZER(next(word_problems("validation")).prompt).input_ids[:20]
    with torch.no_grad():
        expected = mixture(torch.tensor([ids])).logits[0].double().softmax(-1)
    assert (model.append(ids, len(ids)).double().softmax(-1) - expected).abs().max() < 1e-3, "it is the same mixture"
    model.reset()
    Pair(model, NgramDrafter(), TOKENIZER, bundled=True)
    check_priced(timed(model, mixture, monkeypatch), real)


def test_steps_of_short_passes_read_real_text(mixture):
    """With a proposal a step's pass uses more experts than with none, as it does in responses."""
    pair, ticks = Pair(CachedModel(mixture), NgramDrafter(), TOKENIZER, bundled=True), iter(range(10_000))
    with experts_used(mixture) as used, pair.reserve():
        pair.step_seconds(lambda: float(next(ticks)))
    half = len(used) // 2
    assert mean(used[half:]) > 1.3 * mean(used[1:half])
