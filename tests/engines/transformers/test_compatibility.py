"""Versions of transformers: what is tried, and how a newer one is checked, warned of or refused."""

import re
import warnings

import pytest
import torch
from packaging.version import Version
from support.architectures import tiny_architecture
from support.code_blocks import ROOT
from support.tables import all_of
from transformers import LlamaForCausalLM
from transformers.cache_utils import DynamicLayer
from transformers.generation import candidate_generator as generators

from cactus_decoding.engines.transformers import compatibility
from cactus_decoding.engines.transformers.cached_model import CachedModel
from cactus_decoding.engines.transformers.row_cache import RowLayer

INSTALL = "install one that was: pip install 'transformers>=5.0.0,<=5.24.0'"


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


def raises(*_, **__):
    raise RuntimeError("nothing is taken back")


def without_values(self, keys, values, *args, own=RowLayer.update, **named):
    return own(self, keys, 0 * values, *args, **named)


GONE = generators.AssistedCandidateGenerator, "_prepare_generation_args"


@all_of(
    "place, changed, problem",
    [
        (GONE, None, r"there is no AssistedCandidateGenerator\._prepare_generation_args"),
        ((DynamicLayer, "update"), lambda self, states: 0, r"DynamicLayer\.update takes no key_states"),
        (
            (LlamaForCausalLM, "forward"),
            lambda self, input_ids=None, memory=None: None,
            r"LlamaForCausalLM\.forward takes no cache or past_key_values",
        ),
        (
            (RowLayer, "update"),
            without_values,
            r"rows read with a cache differ from rows read without by [\d.e+-]+, where 3\.5e-04 is allowed",
        ),
        (
            (RowLayer, "cut"),
            raises,
            r"a block of tokens cannot be read and taken back \(RuntimeError: nothing is taken back\)",
        ),
    ],
)
def test_what_is_otherwise_is_refused_with_what_to_install(newer, monkeypatch, place, changed, problem):
    with monkeypatch.context() as patch:
        patch.delattr(*place) if changed is None else patch.setattr(*place, changed)
        message = rf"^transformers 5\.99\.0 is not one .* does not pass the check: {problem}; "
        with pytest.raises(ValueError, match=message) as raised:
            CachedModel(tiny_architecture("llama"))
    assert str(raised.value).endswith(INSTALL)


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
