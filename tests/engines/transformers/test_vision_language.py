"""Models that also read images, on plain text: `generate` adds inputs of its own for them, all of them empty."""

import pytest
import torch
from support.tiny_vision_language import KINDS, MLLAMA, tiny_vision_language
from support.versions import since

from cactus_decoding import Metrics, NgramDrafter, speculative_generate

PROMPT = torch.randint(2, 20, (1, 12), generator=torch.Generator().manual_seed(1))


def speculate(model, prompt=PROMPT, **given):
    return model.generate(prompt, custom_generate=speculative_generate, do_sample=False, max_new_tokens=16, **given)


@pytest.mark.parametrize("kind", KINDS)
def test_plain_text_is_that_of_generate(kind):
    for seed in (0, 1):
        model = tiny_vision_language(kind, KINDS[kind], seed)
        plain = model.generate(PROMPT, do_sample=False, max_new_tokens=16)
        metrics = Metrics()
        assert torch.equal(speculate(model, assistant_model=model, metrics=metrics), plain)
        assert metrics.accepted > 0
        assert torch.equal(speculate(model, drafter=NgramDrafter()), plain)


@since("5.19.0")
def test_inputs_that_hold_nothing_are_none():
    model = tiny_vision_language("Llava", KINDS["Llava"])
    for given in ({"mm_encoder_outputs": {}}, {"mm_encoder_outputs": {"image": None}}, {}):
        assert speculate(model, drafter=NgramDrafter(), **given).shape == (1, 28)
    with pytest.raises(ValueError, match="text only, but was given mm_encoder_outputs"):
        speculate(model, drafter=NgramDrafter(), mm_encoder_outputs={"image": torch.ones(1)})


@since("5.19.0")
def test_marks_of_what_is_no_image_are_none():
    model = tiny_vision_language("Qwen2VL", KINDS["Qwen2VL"])
    marks = torch.zeros_like(PROMPT)
    plain = model.generate(PROMPT, mm_token_type_ids=marks, do_sample=False, max_new_tokens=16)
    assert torch.equal(speculate(model, drafter=NgramDrafter(), mm_token_type_ids=marks), plain)
    marks[0, 3] = 1
    with pytest.raises(ValueError, match="text only, but was given mm_token_type_ids"):
        speculate(model, drafter=NgramDrafter(), mm_token_type_ids=marks)


def test_an_image_is_refused_by_name():
    model = tiny_vision_language("Llava", KINDS["Llava"])
    prompt = torch.cat([PROMPT, torch.full((1, 4), 31)], 1)
    with pytest.raises(ValueError, match=r"text only, but was given (mm_encoder_outputs|pixel_values)"):
        speculate(model, prompt, drafter=NgramDrafter(), pixel_values=torch.zeros(1, 3, 8, 8).double())


def test_cross_attention_layers_are_refused():
    model = tiny_vision_language("Mllama", MLLAMA)
    with pytest.raises(ValueError, match="MllamaForConditionalGeneration has cross-attention layers"):
        speculate(model, drafter=NgramDrafter())
