"""Twins of the bundled models say what they say, though they are wider and deeper."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.scripts import benchmark
from transformers import LlamaForCausalLM

from cactus_decoding import generate, load_pair, zoo
from cactus_decoding.zoo.word_problems import EXAMPLES

twins = benchmark("twins")
SMALL, TINY = twins.SHAPES["small"], twins.SHAPES["tiny"]
TOLERANCE = 1e-4
"""Of logits in float32: sums have more terms, all of them zero, but are taken in another order."""


def bundled(role: str) -> LlamaForCausalLM:
    return LlamaForCausalLM.from_pretrained(zoo.path(role), dtype=torch.float32).eval()


@torch.inference_mode()
def difference(model: LlamaForCausalLM, twin: LlamaForCausalLM) -> tuple[float, float]:
    """Return the largest difference of logits, and the largest logit of a token that the model does not have."""
    ids = load_pair().tokenizer(f"{EXAMPLES[0].prompt} She has", return_tensors="pt").input_ids
    own, theirs = model(ids).logits, twin(ids).logits
    width = own.shape[-1]
    return float((own - theirs[..., :width]).abs().max()), float(theirs[..., width:].max())


@pytest.mark.parametrize(("role", "shape"), [("target", SMALL), ("worded", TINY), ("draft", TINY)])
def test_logits_are_the_models_and_no_other_token_is_ever_drawn(role: str, shape) -> None:
    model = bundled(role)
    twin = twins.twin(model, shape, dtype=torch.float32, device="cpu")
    largest, padding = difference(model, twin)
    assert largest < TOLERANCE
    assert padding < -1000
    assert twin.num_parameters() > 1.5 * model.num_parameters()
    assert twin.config.vocab_size == shape.vocabulary


@pytest.mark.parametrize("wrong", ["uncorrected norms", "a new layer that writes"])
def test_what_would_change_the_logits_is_seen(wrong: str) -> None:
    model = bundled("worded")
    twin = twins.twin(model, TINY, dtype=torch.float32, device="cpu")
    with torch.no_grad():
        if wrong == "uncorrected norms":
            for layer in twin.model.layers:
                layer.input_layernorm.weight *= (TINY.hidden / model.config.hidden_size) ** 0.5
        else:
            twin.model.layers[-1].mlp.down_proj.weight.normal_(std=0.02)
    assert difference(model, twin)[0] > 0.01


def test_answers_are_the_bundled_pairs_token_for_token() -> None:
    pair = twins.twin_pair(SMALL, TINY, dtype=torch.float32, device="cpu")
    for settings in ({"temperature": 0}, {"rule": "clamped:width=2", "protect": "digits", "seed": 1}):
        answers = [
            generate(each, EXAMPLES[1].prompt, num_speculative_tokens=4, **settings) for each in (load_pair(), pair)
        ]
        assert answers[0].token_ids == answers[1].token_ids
        assert answers[0].metrics.accepted == answers[1].metrics.accepted


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"hidden": 96}, "hidden"),
        ({"layers": 2}, "layers"),
        ({"vocabulary": 1000}, "vocabulary"),
        ({"key_heads": 3}, ""),
    ],
)
def test_shapes_that_the_model_does_not_fit_are_refused(change: dict[str, int], named: str) -> None:
    with pytest.raises(ValueError, match=f"a twin's {named} must|heads must be a multiple"):
        twins.twin(bundled("worded"), replace(TINY, **change), dtype=torch.float32, device="cpu")
