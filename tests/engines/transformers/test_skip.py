"""Drafts from the target itself: their rows, their cache, what they leave as it was, and how they are chosen."""

import copy
import itertools
import math

import pytest
import torch
from support.architectures import tiny_architecture
from support.tables import all_of
from support.tiny_architectures import LLAMA_CONFIGS, perturbed, random_tokens, tiny_gemma3, tiny_gpt2
from support.tiny_models import tiny_llama
from support.versions import since

from cactus_decoding import Pair, generate, load_pair
from cactus_decoding.core.drafting import measuring
from cactus_decoding.core.drafting.registry import parse_drafter
from cactus_decoding.engines.transformers import skip_choice, sublayers
from cactus_decoding.engines.transformers.cached_model import CachedModel
from cactus_decoding.engines.transformers.skip import EarlyExit, Skip
from cactus_decoding.engines.transformers.skip_choice import Text, acceptance, candidates, choose, knapsack
from cactus_decoding.engines.transformers.sublayers import Part

LAST = ("o_proj", "out_proj", "down_proj", "output_linear")  # matrices of parts: where it is zero, a part adds nothing
MODELS = {
    "llama": lambda: perturbed(LLAMA_CONFIGS["llama"], dtype=torch.float64),
    "qwen2": lambda: perturbed(LLAMA_CONFIGS["qwen2"], dtype=torch.float64),
    "qwen3": lambda: perturbed(LLAMA_CONFIGS["qwen3"], dtype=torch.float64),
    "gemma3": lambda: tiny_gemma3(0),
    **{
        name: lambda name=name, own=own: tiny_architecture(name, **own)
        for name, own in {
            "mixtral": {"num_hidden_layers": 3},
            "falcon_h1": {"num_hidden_layers": 3},
            "bamba": {"num_hidden_layers": 3},
            "granitemoehybrid": {},
            "qwen3_next": {},
        }.items()
    },
}
NEW = {name: since("5.19.0") for name in ("bamba", "granitemoehybrid", "qwen3_next", "falcon_h1")}
SKIPPED = {
    "llama": ["attention=0", "mlp=0", "layers=0", "layers=1", "layers=2,attention=1", "attention=0.2,mlp=all"],
    "qwen2": ["attention=0", "layers=1", "attention=1-2,mlp=2"],
    "qwen3": ["attention=0.1", "mlp=0.2"],
    "gemma3": ["mlp=0", "mlp=all"],
    "mixtral": ["attention=0,mlp=1", "layers=1"],
    "falcon_h1": ["attention=0", "recurrent=0", "recurrent=all", "attention=0.1,recurrent=2", "layers=0", "layers=2"],
    "bamba": ["recurrent=0", "recurrent=all", "mlp=1", "layers=0"],
    "granitemoehybrid": ["recurrent=all", "mlp=0"],
    "qwen3_next": ["recurrent=all", "mlp=1"],
}


def skip(text: str) -> Skip:
    found = parse_drafter(f"skip:{text}")
    assert isinstance(found, Skip)
    return found


def zeroed(target, skipped):
    """The target with zeros in the last matrices of some parts: nothing of it is left out, renumbered or cut off."""
    model = copy.deepcopy(target)
    for part in skipped:
        layer = sublayers.layers_of(model)[part.layer]
        for name in sublayers.modules_of(layer)[part.kind]:
            last = [p for key, p in getattr(layer, name).named_parameters() if any(each in key for each in LAST)]
            assert last
            for parameter in last:
                parameter.data.zero_()
    return model


def rows_with_rollbacks(model, ids):
    """Rows of a text that is read in blocks, each after tokens that were taken back."""
    cached, rows = CachedModel(model), []
    for start in range(0, len(ids), 5):
        rows.append(cached.append(ids[cached.length : start + 5], rows=min(5, len(ids) - start)))
        end = cached.length
        cached.append([7, 3, 1], rows=3)
        cached.rollback(end)
        assert cached.length <= end
    return torch.cat(rows).softmax(-1)


@pytest.mark.parametrize("name", [pytest.param(name, marks=NEW.get(name, ())) for name in SKIPPED])
def test_rows_are_those_of_the_target_with_zeros_in_the_place_of_parts(name):
    target, ids = MODELS[name](), random_tokens(23, vocabulary=8)
    with torch.no_grad():
        whole = target(torch.tensor([ids]), use_cache=False).logits[0].softmax(-1)
    for text in SKIPPED[name]:
        without = zeroed(target, skip(text).parts(target))
        with torch.no_grad():
            expected = without(torch.tensor([ids]), use_cache=False).logits[0].softmax(-1)
        found = rows_with_rollbacks(skip(text).of(target), ids)
        assert (found - expected).abs().max() < 1e-5, text  # norms have the digits of float32
        assert (found - whole).abs().max() > 1e-3, text  # it is another model than the target


def test_attentions_that_keep_their_place_in_the_cache_read_wrong_rows(monkeypatch):
    """The cache counts its tokens by its first layer: the wrong variant leaves that one empty."""
    target, ids = MODELS["llama"](), random_tokens(23, vocabulary=8)
    expected = rows_with_rollbacks(skip("attention=0").of(target), ids)
    monkeypatch.setattr(sublayers, "_number_kept", lambda model: None)
    with pytest.raises(ValueError, match="cached 0 tokens where 5 were read"):
        rows_with_rollbacks(skip("attention=0").of(target), ids)
    same = rows_with_rollbacks(skip("attention=1").of(target), ids)
    assert same.shape == expected.shape, "where the first layer is kept, nothing is wrong"


def test_the_last_layers_skipped_are_an_early_exit():
    target = MODELS["llama"]()
    ids = torch.tensor([random_tokens(9)])
    with torch.no_grad():
        for count in (1, 2):
            one, other = skip(f"layers={count}-2").of(target), EarlyExit(count).of(target)
            assert torch.equal(one(ids).logits, other(ids).logits)
            assert len(one.model.layers) == count


def test_weights_are_the_targets_own_and_it_stays_as_it_was():
    target, ids = MODELS["llama"](), torch.tensor([random_tokens(9)])
    with torch.no_grad():
        before = target(ids).logits
        draft = skip("attention=0,mlp=2").of(target)
        candidates(target, [random_tokens(4)])
        assert torch.equal(target(ids).logits, before)
    ours = {tensor.data_ptr() for tensor in target.parameters()}
    assert all(tensor.data_ptr() in ours for tensor in draft.parameters()), "no weight is stored twice"
    assert draft.name_or_path == "skip:attention=0,mlp=2"
    assert sublayers.parts_of(target) == [Part(i, kind) for i in range(3) for kind in ("attention", "mlp")]


@all_of("length", [4, "auto", "confidence"])
def test_greedy_texts_are_those_of_the_target_alone(length):
    own = load_pair(draft="suffix")
    pair = own.with_draft("skip:layers=4,attention=2")
    prompt, drafted, accepted = own.sample_prompts()[0], 0, 0
    for draft in (pair, pair.twin()):
        answer = generate(draft, prompt, temperature=0.0, num_speculative_tokens=length, max_new_tokens=40)
        plain = generate(own, prompt, temperature=0.0, num_speculative_tokens=0, max_new_tokens=40)
        assert answer.token_ids == plain.token_ids
        drafted, accepted = drafted + answer.metrics.drafted, accepted + answer.metrics.accepted
    assert 0 < accepted < drafted, "some were rejected, so caches went back"


@all_of(
    "make, text, message",
    [
        (lambda: tiny_llama(0), "layers=0-1", "must keep an attention of each kind"),
        (lambda: tiny_llama(0), "attention=all", "must keep an attention of each kind"),
        (lambda: tiny_gemma3(0), "attention=0", "must keep an attention of each kind"),
        (lambda: tiny_llama(0), "mlp=2", "cannot skip mlp=2: the target has 2 layers"),
        (lambda: tiny_llama(0), "recurrent=1", "cannot skip recurrent=1: the target has no recurrent there"),
        (lambda: tiny_llama(0), "recurrent=all", "must skip something"),
        (lambda: tiny_gpt2(0), "mlp=0", "has no list of layers to leave some out of"),
    ],
)
def test_what_cannot_be_skipped_is_named(make, text, message):
    with pytest.raises(ValueError, match=message):
        skip(text).of(make())


def test_layers_with_other_modules_are_refused():
    model = tiny_llama(0)
    model.model.layers[1].gate = torch.nn.Linear(2, 2)
    with pytest.raises(ValueError, match="LlamaDecoderLayer has a 'gate': parts can be skipped of layers that hold"):
        skip("mlp=0").of(model)


@all_of("wrong", ["3,", "a", "-1", "1.", "1..2", "3-", "12345", "5-3", "1.5-3"])
def test_wrong_layers_are_named(wrong):
    with pytest.raises(ValueError, match=r"mlp must be layers such as 3.5-7, or all, but is"):
        Skip(mlp=wrong)


def test_spellings():
    parts = [Part(i, kind) for i in range(6) for kind in ("attention", "mlp")]
    skipped = {*parts[2:8], Part(5, "mlp")}
    assert str(Skip.of_parts(skipped, parts)) == "skip:layers=1-3,mlp=5"
    assert str(Skip()) == "skip"
    assert parse_drafter("skip:layers=1-3,mlp=5") == Skip.of_parts(skipped, parts)
    target = MODELS["llama"]()
    assert Skip.of_parts(Skip(attention="0.2", layers="1").parts(target), sublayers.parts_of(target)) == Skip(
        attention="0.2", layers="1"
    )


def test_a_knapsack_holds_what_is_worth_most():
    generator = torch.Generator().manual_seed(3)
    parts = [Part(i // 2, ("attention", "mlp")[i % 2]) for i in range(8)]
    worth = dict(zip(parts, torch.rand(8, generator=generator).tolist(), strict=True))
    units = torch.randint(1, 40, (7,), generator=generator).tolist()
    seconds = dict(zip(parts, [*units, 200 - sum(units)], strict=True))  # of 200, so that none are rounded
    for share, kept in zip((0.2, 0.5, 0.8), knapsack(worth, seconds, (0.2, 0.5, 0.8)), strict=True):
        subsets = [c for size in range(9) for c in itertools.combinations(parts, size)]
        fits = [each for each in subsets if sum(seconds[part] for part in each) <= 200 * share]
        best = max(sum(worth[part] for part in each) for each in fits)
        assert sum(seconds[part] for part in kept) <= 200 * share
        assert math.isclose(sum(worth[part] for part in kept), best)


def test_agreement_is_what_a_lossless_step_keeps():
    target, ids = MODELS["llama"](), random_tokens(12)
    draft = skip("mlp=1").of(target)
    with torch.no_grad():
        q, p = (each(torch.tensor([ids])).logits[0, 3:11].float().softmax(-1) for each in (target, draft))
    found = acceptance(CachedModel(draft), [Text(ids, 4, q)])
    assert found == pytest.approx(float(torch.minimum(p, q).sum(-1).mean()), abs=1e-6)
    assert acceptance(CachedModel(target), [Text(ids, 4, q)]) == pytest.approx(1.0, abs=1e-6)


def test_parts_that_add_nothing_are_skipped_first(monkeypatch):
    """The knapsack finds the parts that were made useless, and the forecast is the formula's."""
    target = MODELS["llama"]()
    useless = {Part(1, "attention"), Part(1, "mlp"), Part(2, "mlp")}
    target = zeroed(target, useless)
    monkeypatch.setattr(skip_choice, "_seconds", lambda target, clock: dict.fromkeys(sublayers.parts_of(target), 1.0))
    monkeypatch.setattr(
        measuring,
        "time_passes",
        lambda model, widths, *_: dict.fromkeys(widths, 1.0 if len(widths) > 1 else len(model.model.model.layers) / 4),
    )
    found = candidates(target, [random_tokens(5, seed=seed) for seed in range(3)])
    half = next(each for each in found if each.skipped == useless)
    assert half.acceptance == pytest.approx(1.0, abs=1e-6)
    assert half.seconds == 0.75
    k = half.num_speculative_tokens
    assert half.speed == pytest.approx((k + 1) / (1 + 0.75 * k), abs=1e-5)
    assert max(found, key=lambda each: each.speed) == skip_choice.best_of(found)


def test_a_choice_is_measured_once_and_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    target, prompts = MODELS["llama"](), [random_tokens(5, seed=seed) for seed in range(3)]
    chosen = choose(target, prompts)
    monkeypatch.setattr(skip_choice, "candidates", lambda *_: pytest.fail("it is measured twice"))
    assert choose(target, prompts) == chosen
    (kept,) = (tmp_path / "cactus-decoding" / "skips").iterdir()
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for damaged in ("{}", '{"forecast": {"skipped": []}}', '{"forecast": {"skipped": 3}}'):
        kept.write_text(damaged)
        assert choose(target, prompts)
    assert "forecast" in kept.read_text()
    with pytest.raises(ValueError, match="needs prompts that fit"):
        candidates(target, [[1] * 690])


def test_the_bundled_target_chooses_by_its_own_problems(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(skip_choice, "ANSWER", 6)
    monkeypatch.setattr(Pair, "sample_prompts", lambda pair, own=Pair.sample_prompts: own(pair)[:2])
    pair = load_pair(draft="skip")
    assert pair.drafter.name.startswith("skip:")
    assert parse_drafter(pair.drafter.name) != Skip()
    with pytest.raises(ValueError, match="skip needs prompts"):
        Skip().drafter(pair.target.model)
