"""Models by name: what cannot be loaded is said in one whole sentence, and before anybody is asked."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from cactus_decoding import load_pair, zoo
from cactus_decoding.core.models.loading import check_model_name, only_cached, sentence_of
from cactus_decoding.engines.transformers.loader import load_model

WORDS = ["bundled", "ngram", "early_exit"]


@pytest.fixture
def folder(tmp_path):
    return shutil.copytree(zoo.path("draft"), tmp_path / "model")


def configure(folder, **changes):
    config = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps({name: each for name, each in config.items() if each is not None}))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_hidden_layers": 3}, "it lacks 18 weights, such as model.layers.1."),
        ({"vocab_size": 9}, "embed_tokens.weight is [1003, 128], where its config.json asks for [9, 128]"),
        # newer versions of transformers check the configuration before the weights
        ({"num_attention_heads": 7}, "is not a multiple of the number of attention heads (7)|asks for [128, 448]"),
        ({"vocab_size": "many"}, "expected int, got str|found element of type str"),
        ({"model_type": "nonsense"}, "`nonsense`"),
        ({"model_type": None, "architectures": None}, "Should have a `model_type` key"),
        ({"model_type": "t5"}, "Unrecognized configuration class"),
    ],
)  # fmt: skip
def test_a_model_whose_weights_do_not_fit_is_refused(folder, changes, words):
    configure(folder, **changes)
    with pytest.raises(ValueError, match="cannot load") as raised:
        load_pair(folder, "ngram")
    assert any(each in str(raised.value) for each in words.split("|"))
    assert "\n" not in str(raised.value)
    assert not str(raised.value).endswith((":", ","))


def test_a_whole_model_is_loaded(folder):
    model = load_model("target", folder, torch.float32, torch.device("cpu"))
    assert not model.training
    assert load_pair(folder, "ngram").tokenizer.eos_token == "<eos>"
    assert load_pair("bundled", "bundled").bundled


def test_a_bundled_draft_is_loaded_by_its_name_and_the_worded_one_without():
    layers = {None: 3, "bundled": 3, "bundled:worded": 3, "bundled:draft": 1}
    found = {name: load_pair(draft=name).drafter.model.config.num_hidden_layers for name in layers}
    assert found == layers


def test_names_that_can_be_no_model_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    for name, words in (
        ("bundeld", "did you mean 'bundled'"),
        ("ngrm", "did you mean 'ngram'"),
        ("ngrams", "did you mean 'ngram'"),
        ("early_exti:layers=3", "did you mean 'early_exit'"),
        ("a--b", "no model's name$"),
        ("./modle", "did you mean 'model'"),
        ("a/b/c", "there is no folder"),
        (tmp_path / "x" / "none", "there is no folder '.*none'$"),
        (Path("gpt2"), "there is no folder 'gpt2'; give a hub name as text"),
        (Path("org/name"), "there is no folder 'org/name'; give a hub name as text"),
        (Path("modle"), "did you mean 'model'"),
        ("model", "holds no model"),
        ("", "cannot load the target: its name is empty"),
    ):
        with pytest.raises(ValueError, match=words):
            check_model_name("target", name, WORDS)
    with pytest.raises(TypeError, match="target must be a path or a name, but is 3"):
        load_pair(3, "ngram")


def test_names_that_the_hub_may_have_are_left_to_it():
    for name in ("owner/name", "owner/ngrams", "gpt2", "roberta-base", "bert-base-uncased", zoo.path("target")):
        check_model_name("target", name, WORDS)


def test_what_was_not_fetched_is_refused_in_offline_mode():
    assert not only_cached("target", zoo.path("target"))
    with pytest.raises(ValueError, match="was not fetched before, and the hub is not asked in offline mode"):
        only_cached("target", "owner/name")


def test_long_errors_are_cut_between_words():
    text = sentence_of(ValueError("word " * 200))
    assert len(text) <= 302
    assert text.endswith("word …")
    assert sentence_of(ValueError()) == "ValueError"
