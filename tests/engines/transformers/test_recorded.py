"""A recorded pass gives the model's own numbers, bit for bit, and is made only where that is so."""

import gc
import random
import warnings
import weakref
from contextlib import nullcontext

import pytest
import torch
from support.architectures import tiny_architecture
from torch import nn

from cactus_decoding import load_pair
from cactus_decoding.core.generate import generate
from cactus_decoding.core.models.base import BaseCachedModel
from cactus_decoding.engines.transformers import compatibility, recorded
from cactus_decoding.engines.transformers.cached_model import CachedModel, reading_state
from cactus_decoding.engines.transformers.forward import GeneralForward
from cactus_decoding.engines.transformers.recorded import RecordedPass, RecordedPasses, can_be_recorded


def drive(model, seed: int, recordings: RecordedPasses, steps: int = 30) -> None:
    """Read and take back tokens at random with a model, and with what is recorded of it; nothing may differ."""
    chance, length = random.Random(seed), 20
    ours, plain = GeneralForward(model, {}, recordings), GeneralForward(model, {})
    with torch.inference_mode():
        for forward in (ours, plain):
            forward.append(torch.arange(length), 0, 1)
        for _ in range(steps):
            count = chance.choice([1, 1, 2, 7, 8])
            rows, token_ids = chance.choice([1, count]), torch.tensor([chance.randrange(50) for _ in range(count)])
            made, expected = (forward.append(token_ids, length, rows) for forward in (ours, plain))
            assert torch.equal(made, expected)
            kept = length + count - chance.randrange(count + 1)
            for forward in (ours, plain):
                assert forward.keep(length + count, kept, []) == kept
            length = kept
            for layer, other in zip(ours.layers, plain.layers, strict=True):
                assert torch.equal(layer.keys, other.keys)
                assert torch.equal(layer.values, other.values)


def record(model) -> RecordedPass:
    return RecordedPass(model, model.config, lambda: GeneralForward(model, {}), 1, 1)


def made(recordings: RecordedPasses) -> list[bool]:
    return [each is not None for each in recordings._made.values()]


@pytest.fixture
def at_once(monkeypatch):
    monkeypatch.setattr(recorded, "FREQUENT", 1)


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "olmo2"])
def test_recorded_passes_give_the_models_numbers(name, at_once):
    model, recordings = tiny_architecture(name), RecordedPasses()
    drive(model, 0, recordings)
    assert all(made(recordings)), "the test would compare the model with itself"
    assert len(made(recordings)) >= 5


def test_bfloat16_too(at_once):
    recordings = RecordedPasses()
    drive(tiny_architecture("llama").bfloat16(), 1, recordings)
    assert all(made(recordings))


def test_a_recording_that_forgets_the_length_shows(at_once, monkeypatch):
    """The wrong variant: what is recorded always writes to the same places."""
    usual = RecordedPass.places
    monkeypatch.setattr(RecordedPass, "places", lambda self, start: usual(self, min(start, 11)))
    with pytest.raises(AssertionError):
        drive(tiny_architecture("llama"), 0, RecordedPasses())


@torch.inference_mode()
def test_a_model_that_decides_by_numbers_is_not_recorded():
    class Deciding(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, hidden):
            return self.inner(hidden if hidden.sum() > 0 else hidden + 1)

    model = tiny_architecture("llama")
    model.model.layers[0].mlp = Deciding(model.model.layers[0].mlp)
    with pytest.raises(ValueError, match="__bool__ of a tensor"):
        record(model)
    assert not can_be_recorded(model)


@torch.inference_mode()
def test_what_hides_warnings_hides_no_decision(monkeypatch):
    """Another thread may have the filters of warnings at any time; here it has them always."""
    monkeypatch.setattr(warnings, "showwarning", lambda *_: None)
    monkeypatch.setattr(warnings, "filterwarnings", lambda *_, **__: warnings.simplefilter("ignore"))
    monkeypatch.setattr(warnings, "catch_warnings", lambda **_: nullcontext([]))
    dynamic = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10_000.0}
    with pytest.raises(ValueError, match="__bool__ of a tensor"):
        record(tiny_architecture("llama", rope_parameters=dynamic))


@pytest.mark.parametrize(
    "decide",
    [
        lambda hidden: hidden * len(hidden[0]),
        lambda hidden: hidden * hidden.sum().item(),
        lambda hidden: torch.stack([each * 2 for each in hidden[0]])[None],
        lambda hidden: hidden[:, [*range(hidden.shape[1])]],
        lambda hidden: hidden * float(hidden[0, 0, 0]),
        lambda hidden: hidden if torch.equal(hidden, hidden) else -hidden,
    ],
    ids=["len", "item", "iter", "range", "float", "equal"],
)
@torch.inference_mode()
def test_numbers_of_python_are_found_however_they_are_taken(decide):
    class Deciding(nn.Module):
        def forward(self, hidden):
            return decide(hidden)

    model = tiny_architecture("llama")
    model.model.norm = Deciding()
    with pytest.raises(ValueError, match="Python decides by numbers"):
        record(model)


@torch.inference_mode()
def test_a_model_that_counts_its_passes_is_found_out():
    class Counting(nn.Module):
        passes = 0

        def forward(self, hidden):
            self.passes += 1
            return hidden * self.passes

    model = tiny_architecture("llama")
    model.model.norm = Counting()
    with pytest.raises(ValueError, match="other numbers"):
        record(model)


def test_what_is_hooked_or_put_in_place_of_code_is_not_recorded():
    hooked, replaced, training, eager = (tiny_architecture("llama") for _ in range(4))
    assert can_be_recorded(hooked)
    hooked.model.norm.register_forward_hook(lambda *_: None)
    replaced.model.norm.forward = replaced.model.norm.forward
    training.train()
    eager.set_attn_implementation("eager")
    assert not any(map(can_be_recorded, (hooked, replaced, training, eager)))


def test_a_replaced_forward_of_a_class_is_not_recorded(monkeypatch):
    model = tiny_architecture("llama")
    kind = type(model.model.norm)
    usual = kind.forward
    monkeypatch.setattr(kind, "forward", lambda self, hidden: usual(self, hidden))
    assert not can_be_recorded(model)


def test_recordings_are_of_a_state_and_take_nothing_from_the_model(at_once):
    model = tiny_architecture("llama")
    before = [(name, id(weight)) for name, weight in model.named_parameters()]
    first, second = CachedModel(model), CachedModel(model)
    for cache in (first, second):
        cache.forget_if_changed()
        cache.append([1, 2, 3], 1)
        cache.append([4], 1)
    assert first._forward._recorded is second._forward._recorded, "caches share what is recorded of a model"
    assert made(first._forward._recorded) == [True]
    assert [(name, id(weight)) for name, weight in model.named_parameters()] == before
    assert model.config._attn_implementation == "sdpa"
    with torch.no_grad():
        model.model.norm.weight.mul_(2)
    first.forget_if_changed()
    first.append([1, 2, 3], 1)
    assert not made(first._forward._recorded)
    rows = first.append([4], 1)
    plain = CachedModel(model)
    plain.append([1, 2, 3], 1)
    assert plain._forward._recorded is None, "nobody said in which state the model is"
    assert torch.equal(rows, plain.append([4], 1))


def test_a_recording_does_not_keep_a_model():
    model = tiny_architecture("llama")
    with torch.inference_mode():
        kept = record(model)
    left, weight = weakref.ref(model), weakref.ref(kept.weights[0])
    del model
    gc.collect()
    assert left() is None
    function = weakref.ref(kept._function)
    del kept
    gc.collect()
    assert weight() is None
    assert function() is None


def test_weights_that_a_model_no_longer_has_are_not_kept(at_once):
    model = tiny_architecture("llama")
    cache = CachedModel(model)

    def respond():
        cache.forget_if_changed()
        cache.append([1, 2, 3], 1)
        cache.append([4], 1)

    respond()
    old = weakref.ref(model.model.norm.weight)
    model.model.norm.weight = nn.Parameter(torch.ones(32))
    model.train()
    respond()
    gc.collect()
    assert old() is None
    assert cache._forward._recorded is None


def test_a_model_has_so_many_recordings_at_most(at_once, monkeypatch):
    monkeypatch.setattr(recorded, "_MOST", 2)
    recordings = RecordedPasses()
    drive(tiny_architecture("llama"), 0, recordings)
    assert made(recordings) == [True, True]


def test_other_masks_than_transformers_own_are_not_recorded(monkeypatch):
    model = tiny_architecture("llama")
    assert can_be_recorded(model)
    before = reading_state(model)
    monkeypatch.setitem(compatibility.ALL_MASK_ATTENTION_FUNCTIONS, "sdpa", lambda *_, **__: None)
    assert not can_be_recorded(model)
    assert reading_state(model) != before


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.0}, {"rule": "cactus:delta=1"}])
def test_the_bundled_pair_says_the_same_with_recordings_and_without(settings, monkeypatch):
    prompt = "Question: Tom has 4 red and 7 blue marbles. How many has he?\nAnswer:"
    answers = []
    for frequent in (1, 10**9):
        monkeypatch.setattr(recorded, "FREQUENT", frequent)
        pair = load_pair()
        answers += [[generate(pair, prompt, seed=seed, **settings).token_ids for seed in range(3)]]
        caches: list[BaseCachedModel] = [pair.target, pair.drafter.model_cache]
        assert [any(made(cache._forward._recorded)) for cache in caches] == 2 * [frequent == 1]
    assert answers[0] == answers[1]
