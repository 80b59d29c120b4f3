"""Versions of transformers: what is tried, and how a newer one is checked, warned of or refused."""

from __future__ import annotations

import re
import warnings

import pytest
import torch
from packaging.version import Version
from support.architectures import tiny_architecture
from support.code_blocks import ROOT
from transformers.cache_utils import DynamicLayer
from transformers.generation import candidate_generator as generators

from cactus_decoding import speculative_generate
from cactus_decoding.engines.transformers import compatibility
from cactus_decoding.engines.transformers.cached_model import CachedModel
from cactus_decoding.engines.transformers.row_cache import RowLayer

INSTALL = "install one that was: pip install 'transformers>=5.0.0,<=5.24.0'"
PROMPT = torch.tensor([[1, 2, 3]])


@pytest.fixture
def newer(monkeypatch):
    """A version that nobody has tried; nothing was checked yet."""
    monkeypatch.setattr(compatibility.transformers, "__version__", "5.99.0")
    monkeypatch.setattr(compatibility, "_numbers_checked", set())


def test_the_table_is_in_order_and_the_range_and_the_page_say_the_same():
    assert [*compatibility.TRIED] == sorted(compatibility.TRIED, key=Version)
    dependencies = (ROOT / "pyproject.toml").read_text()
    assert f'"transformers>={Version(compatibility.TRIED[0]).major}.0,<6"' in dependencies
    page = (ROOT / "docs" / "hugging_face.md").read_text()
    assert tuple(re.findall(r"^\| (\d+\.\d+\.\d+) \|", page, re.MULTILINE)) == compatibility.TRIED


def test_a_version_of_the_table_is_not_checked(monkeypatch):
    monkeypatch.setattr(compatibility, "_changed_signature", lambda: pytest.fail("it was checked"))
    CachedModel(tiny_architecture("llama"))


@pytest.mark.parametrize("name", ["llama", "mistral", "mixtral", "gpt2", "gemma3_text"])
def test_a_newer_version_that_passes_is_warned_of_once(newer, name):
    model = tiny_architecture(name)
    with pytest.warns(UserWarning, match=r"^transformers 5\.99\.0 is newer than 5\.24\.0, .* passed the check$"):
        CachedModel(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        CachedModel(model)
        CachedModel(tiny_architecture("qwen2"))


def test_numbers_are_compared_once_for_each_class(newer, monkeypatch):
    compared = []
    own = compatibility._changed_numbers

    def note(model, make_forward):
        compared.append(model)
        return own(model, make_forward)

    monkeypatch.setattr(compatibility, "_changed_numbers", note)
    one, another = tiny_architecture("llama"), tiny_architecture("qwen2")
    with pytest.warns(UserWarning, match="is newer than"):
        CachedModel(one)
    for model in (another, one):
        CachedModel(model)
    assert compared == [one, another]


def refused(problem: str):
    return pytest.raises(
        ValueError, match=rf"^transformers 5\.99\.0 is not one .* does not pass the check: {problem}; "
    )


def test_a_name_that_is_gone_is_refused_with_what_to_install(newer, monkeypatch):
    monkeypatch.delattr(generators.AssistedCandidateGenerator, "_prepare_generation_args")
    with refused(r"there is no AssistedCandidateGenerator\._prepare_generation_args") as raised:
        CachedModel(tiny_architecture("llama"))
    assert str(raised.value).endswith(INSTALL)


def test_a_changed_signature_is_refused_with_what_to_install(newer, monkeypatch):
    def update(self, states, layer):
        raise AssertionError

    monkeypatch.setattr(DynamicLayer, "update", update)
    with refused(r"DynamicLayer\.update takes no key_states") as raised:
        CachedModel(tiny_architecture("llama"))
    assert str(raised.value).endswith(INSTALL)


def test_a_cache_by_another_name_is_refused_with_what_to_install(newer, monkeypatch):
    model = tiny_architecture("llama")

    def forward(self, input_ids=None, memory=None):
        raise AssertionError

    monkeypatch.setattr(type(model), "forward", forward)
    with refused(r"LlamaForCausalLM\.forward takes no cache or past_key_values"):
        CachedModel(model)


def test_other_numbers_are_refused_with_what_to_install(newer, monkeypatch):
    own = RowLayer.update

    def update(self, key_states, value_states, *args, **named):
        return own(self, key_states, 0 * value_states, *args, **named)

    model = tiny_architecture("llama")
    monkeypatch.setattr(RowLayer, "update", update)
    with refused(r"rows read with a cache differ from rows read without by [\d.e+-]+, where 3\.5e-04 is allowed"):
        CachedModel(model)


def test_what_fails_is_refused_with_what_to_install(newer, monkeypatch):
    def cut(self, count):
        raise RuntimeError("nothing is taken back")

    monkeypatch.setattr(RowLayer, "cut", cut)
    with refused(r"a block of tokens cannot be read and taken back \(RuntimeError: nothing is taken back\)"):
        CachedModel(tiny_architecture("llama"))


def test_windows_are_rolled_back_where_transformers_does_not_record():
    """Versions before the switch get a layer that keeps what a rollback needs."""
    rows = torch.arange(20.0).view(1, 1, 20, 1)
    layer = compatibility.RecordingWindowLayer(4)
    layer.update(rows[:, :, :6], rows[:, :, :6])
    keys, _ = layer.update(rows[:, :, 6:10], rows[:, :, 6:10])
    assert keys.flatten().tolist() == [3, 4, 5, 6, 7, 8, 9]
    layer.crop(-3)
    assert (layer.keys.flatten().tolist(), layer.get_seq_length()) == ([4, 5, 6], 7)
    layer.crop(0)
    keys, values = layer.update(rows[:, :, 7:9], rows[:, :, 7:9])
    assert keys.flatten().tolist() == values.flatten().tolist() == [4, 5, 6, 7, 8]
    assert layer.get_seq_length() == 9


# --- a call by another shape than meant ------------------------------------------------------------------------------


def test_it_may_be_called_directly(target, draft):
    plain = target.generate(PROMPT, do_sample=False, max_new_tokens=20)
    settings = {"assistant_model": draft, "do_sample": False, "max_new_tokens": 20}
    assert torch.equal(speculative_generate(target, PROMPT, **settings), plain)
    assert torch.equal(speculative_generate(target, input_ids=PROMPT, **settings), plain)
    mask = {"attention_mask": torch.ones_like(PROMPT)}
    assert torch.equal(speculative_generate(target, PROMPT, **mask, **settings), plain)
    given = {"rule": "cactus:delta=1.0", "do_sample": True, "seed": 3, "max_new_tokens": 20, "assistant_model": draft}
    inside = target.generate(PROMPT, custom_generate=speculative_generate, **given)
    assert torch.equal(speculative_generate(target, PROMPT, **given), inside)
