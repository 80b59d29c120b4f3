"""The folder that `generate(custom_generate=...)` takes, and stop strings, which a folder and a callable read alike."""

from functools import partial
from pathlib import Path

import pytest
import torch
from support.code_blocks import ROOT, blocks_of
from support.tiny_architectures import letter_tokenizer
from support.tiny_models import tiny_llama
from transformers import GenerationConfig, dynamic_module_utils

from cactus_decoding import Metrics, NgramDrafter, speculative_generate

FOLDER = str(ROOT / "hub")
PROMPT = torch.tensor([[1, 2, 3]])
LETTERS = letter_tokenizer("abcdefgh")


@pytest.fixture(autouse=True)
def modules_elsewhere(tmp_path: Path, monkeypatch):
    """Transformers copies the folder's code before it runs it."""
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path))


def from_folder(model, prompt=PROMPT, **given):
    return model.generate(prompt, custom_generate=FOLDER, trust_remote_code=True, **given)


# --- the folder ------------------------------------------------------------------------------------------------------


def test_the_folder_does_what_the_callable_does(target, draft):
    settings = {"rule": "cactus:delta=1.0", "do_sample": True, "max_new_tokens": 30, "seed": 0}
    counts = [Metrics(), Metrics()]
    ours = from_folder(target, assistant_model=draft, metrics=counts[0], **settings)
    given = {"custom_generate": speculative_generate, "assistant_model": draft, "metrics": counts[1]}
    assert torch.equal(ours, target.generate(PROMPT, **given, **settings))
    assert counts[0].relaxed == counts[1].relaxed > 0


def test_a_generation_config_and_the_other_arguments_go_through(target, draft):
    config = GenerationConfig(do_sample=False, max_new_tokens=12, return_dict_in_generate=True)
    ours = from_folder(target, assistant_model=draft, generation_config=config)
    assert torch.equal(ours.sequences, target.generate(PROMPT, generation_config=config).sequences)
    ours = from_folder(target, None, input_ids=PROMPT, assistant_model=draft, max_new_tokens=12)
    assert ours.shape == (1, 15)


def test_a_draft_with_other_tokens(target):
    given = {"tokenizer": LETTERS, "assistant_tokenizer": letter_tokenizer("xhgfedcbayz")}
    metrics = Metrics()
    settings = {"do_sample": False, "max_new_tokens": 12}
    ours = from_folder(target, assistant_model=tiny_llama(1, 11), metrics=metrics, **settings, **given)
    assert torch.equal(ours, target.generate(PROMPT, **settings))
    assert metrics.drafted > 0


def test_refusals(target):
    for given, message in (
        ({}, "a draft is missing"),
        ({"drafter": NgramDrafter(), "token_healing": True, "tokenizer": LETTERS}, "token_healing is not supported"),
        ({"drafter": NgramDrafter(), "cache_implementation": "paged"}, "but is 'paged'"),
        ({"drafter": NgramDrafter(), "rules": "lossless"}, "not used by the model: .'rules'"),
        ({"drafter": NgramDrafter(), "stop_strings": ["a"]}, "stop_strings need the target's tokenizer"),
    ):
        with pytest.raises(ValueError, match=message):
            from_folder(target, max_new_tokens=5, **given)


def test_the_readme_s_example_runs(capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    (block,) = [block for block in blocks_of((ROOT / "hub/README.md").read_text()) if block.language == "python"]
    exec(compile(block.text, "hub/README.md", "exec"), {})
    assert capsys.readouterr().out.startswith("Question: Anna has 43 stamps.")


# --- stop strings ----------------------------------------------------------------------------------------------------


def run(model, way: str, strings, **given):
    settings = {"do_sample": False, "max_new_tokens": 40, "assistant_model": model, **given}
    if way == "callable":
        bound = partial(speculative_generate, tokenizer=LETTERS)
        return model.generate(PROMPT, custom_generate=bound, stop_strings=strings, **settings)
    if way == "folder":
        return from_folder(model, stop_strings=strings, tokenizer=LETTERS, **settings)
    if way == "generation config":
        config = GenerationConfig(stop_strings=strings)
        return from_folder(model, tokenizer=LETTERS, generation_config=config, **settings)
    model.generation_config.stop_strings = strings
    return from_folder(model, tokenizer=LETTERS, **settings)


@pytest.mark.parametrize("way", ["callable", "folder", "generation config", "the model's own"])
def test_stop_strings_end_where_those_of_generate_end(way):
    """Inside a block, at the end of a token, across several, across the prompt's end, and of several strings."""
    model = tiny_llama(0)
    text = LETTERS.decode(model.generate(PROMPT, do_sample=False, max_new_tokens=40)[0, 3:])
    cases = [text[2:4], text[5:10], [text[20:23], text[3:6]], LETTERS.decode(PROMPT[0])[-1] + text[:1], "aaaaaaaa"]
    plain = tiny_llama(0)
    for strings in cases:
        theirs = plain.generate(PROMPT, do_sample=False, max_new_tokens=40, stop_strings=strings, tokenizer=LETTERS)
        assert torch.equal(run(model, way, strings), theirs)
        assert theirs.shape[1] < 43 or strings == "aaaaaaaa"


def test_stop_strings_without_a_bound_tokenizer_say_what_to_bind(target, draft):
    """`generate` takes ``tokenizer`` and keeps it."""
    given = {"custom_generate": speculative_generate, "assistant_model": draft, "max_new_tokens": 5}
    with pytest.raises(ValueError, match=r"partial\(speculative_generate, tokenizer=tokenizer\)"):
        target.generate(PROMPT, stop_strings=["a"], tokenizer=LETTERS, **given)
