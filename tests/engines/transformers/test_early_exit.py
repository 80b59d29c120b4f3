"""The first layers of a target as its draft: their rows, their cache, and what they leave as it was."""

import copy

import pytest
import torch
from support.architectures import tiny_architecture
from support.tables import all_of
from support.tiny_architectures import LLAMA_CONFIGS, perturbed, random_tokens, tiny_gemma3, tiny_gpt2
from support.tiny_models import tiny_llama
from support.versions import since

from cactus_decoding import generate, load_pair
from cactus_decoding.engines.transformers.cached_model import CachedModel
from cactus_decoding.engines.transformers.early_exit import EarlyExit
from cactus_decoding.zoo.word_problems import word_problems

LAST = ("o_proj", "out_proj", "down_proj")  # matrices of parts: where it is zero, a part adds nothing
MODELS = {
    "llama": lambda: perturbed(LLAMA_CONFIGS["llama"], dtype=torch.float64),
    "qwen3": lambda: perturbed(LLAMA_CONFIGS["qwen3"], dtype=torch.float64),
    "gemma3": lambda: tiny_gemma3(0),
    "mixtral": lambda: tiny_architecture("mixtral", num_hidden_layers=3),
    "falcon_h1": lambda: tiny_architecture("falcon_h1", num_hidden_layers=3),
}


def without_layers(target, first):
    """The target with zeros in the last matrices of its layers from one on: none is left out."""
    model = copy.deepcopy(target)
    for layer in model.base_model.layers[first:]:
        last = [parameter for name, parameter in layer.named_parameters() if any(each in name for each in LAST)]
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


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=since("5.19.0") if name == "falcon_h1" else ()) for name in MODELS]
)
def test_rows_are_those_of_the_target_with_zeros_in_the_place_of_later_layers(name):
    target, ids = MODELS[name](), random_tokens(23, vocabulary=8)
    count = len(target.base_model.layers) - 1
    with torch.no_grad():
        whole, expected = (
            model(torch.tensor([ids]), use_cache=False).logits[0].softmax(-1)
            for model in (target, without_layers(target, count))
        )
    found = rows_with_rollbacks(EarlyExit(count).of(target), ids)
    assert (found - expected).abs().max() < 1e-5  # norms have the digits of float32
    assert (found - whole).abs().max() > 1e-3, "it is another model than the target"


def test_weights_are_the_targets_own_and_it_stays_as_it_was():
    target, ids = MODELS["llama"](), torch.tensor([random_tokens(9)])
    with torch.no_grad():
        before = target(ids).logits
        draft = EarlyExit(1).of(target)
        assert torch.equal(target(ids).logits, before)
    ours = {tensor.data_ptr() for tensor in target.parameters()}
    assert all(tensor.data_ptr() in ours for tensor in draft.parameters()), "no weight is stored twice"
    assert draft.name_or_path == "early_exit:layers=1"
    assert len(draft.base_model.layers) == draft.config.num_hidden_layers == 1


@all_of("length", [4, "auto", "confidence"])
def test_greedy_texts_are_those_of_the_target_alone(length):
    own, prompt = load_pair(draft="suffix"), next(word_problems("validation")).prompt
    pair = own.with_draft("early_exit:layers=4")
    drafted = accepted = 0
    for draft in (pair, pair.twin()):
        answer = generate(draft, prompt, temperature=0.0, num_speculative_tokens=length, max_new_tokens=40)
        plain = generate(own, prompt, temperature=0.0, num_speculative_tokens=0, max_new_tokens=40)
        assert answer.token_ids == plain.token_ids
        drafted, accepted = drafted + answer.metrics.drafted, accepted + answer.metrics.accepted
    assert 0 < accepted < drafted, "some were rejected, so caches went back"


@all_of(
    "make, message",
    [
        (lambda: tiny_llama(0), "must be before layer 2, the last, but is at 2"),
        (lambda: tiny_gpt2(0), "GPT2LMHeadModel has no list of layers to leave some out of"),
    ],
)
def test_models_without_such_layers_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        EarlyExit(2).of(make())
