"""GGUF files by name: pairs that work together, and what is refused in one sentence, with nothing from llama.cpp."""

import sys

import pytest
from support.gguf_files import header_only, opened
from support.tables import all_of
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

from cactus_decoding import CandidateGeneratorDrafter, Pair, generate, load_pair, zoo
from cactus_decoding.core.extras import install_command
from cactus_decoding.engines.llama_cpp.models.library import library
from cactus_decoding.engines.llama_cpp.models.settings import LlamaCppSettings, parse_gguf
from cactus_decoding.zoo.word_problems import EXAMPLES
from scripts.bundled_gguf import write_gguf

PROMPT = EXAMPLES[0].prompt


def refusal(*names, **given) -> str:
    with pytest.raises(ValueError, match=r"cannot|must|differ|parameters|trained|are on|has no") as error:
        load_pair(*names, **given)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_pair_of_files_writes_what_the_pair_of_folders_writes(gguf):
    settings = {"seed": 3, "rule": "cactus:delta=1", "top_p": 0.95, "protect": "digits", "budget": 0.5}
    settings["num_speculative_tokens"] = 6
    folders = generate(load_pair(draft="bundled:worded"), PROMPT, **settings)
    files = load_pair(f"{gguf('target')}:cache=float32", f"{gguf('worded')}:cache=float32")
    for pair in (
        files,
        files.twin(),
        load_pair(f"{gguf('target')}:cache=float32", zoo.path("worded"), dtype="float32"),
        load_pair(zoo.path("target"), f"{gguf('worded')}:cache=float32", dtype="float32"),
    ):
        response = generate(pair, PROMPT, **settings)
        assert (response.token_ids, response.fates) == (folders.token_ids, folders.fates)
        assert response.text == folders.text
        assert response.metrics.nats == pytest.approx(folders.metrics.nats, abs=1e-5)


def test_settings_are_read_from_the_name(gguf):
    pair = load_pair(f"{gguf('target')}:context_size=300,threads=1", f"{gguf('worded')}:gpu_layers=0")
    assert (pair.target.max_length, pair.drafter.max_length) == (300, 1024)
    assert pair.target.settings == LlamaCppSettings(context_size=300, threads=1)
    assert pair.target.name == str(gguf("target"))
    assert parse_gguf("C:\\models\\Big.GGUF").settings == LlamaCppSettings()


@all_of(
    "settings, words",
    [
        ("context=8", "parameters of gguf are: context_size, gpu_layers, threads, cache"),
        ("context_size=0", "context_size must be at least 1, but is 0"),
        ("context_size=2000", "was trained for 1024 tokens, but context_size is 2000"),
        ("gpu_layers=-2", "gpu_layers must be at least -1, but is -2"),
        ("cache=int8", "cache must be one of float16, float32"),
    ],
)
def test_settings_that_are_none(gguf, settings, words):
    assert words in refusal(f"{gguf('target')}:{settings}", "ngram")


def test_prompts_beyond_the_context(gguf):
    pair = load_pair(f"{gguf('target')}:context_size=20", "ngram")
    with pytest.raises(ValueError, match="shorter than the target's 20 positions, but has 36 tokens"):
        generate(pair, PROMPT)
    with pytest.raises(ValueError, match="the context holds 20 tokens, but 0 and 21 more were to be read"):
        pair.target.append(list(range(21)), rows=1)
    assert len(generate(load_pair(f"{gguf('target')}:context_size=40", "ngram"), PROMPT, seed=0).token_ids) == 4


@all_of("length", [0, 3, 100, 60_000, 500_000, -1])
def test_files_that_are_cut(gguf, tmp_path, capfd, length):
    path = tmp_path / "cut.gguf"
    path.write_bytes(gguf("draft").read_bytes()[:length])
    capfd.readouterr()
    assert f"{str(path)!r}: " in refusal(path, "ngram")
    assert capfd.readouterr() == ("", "")


def test_files_that_are_none(tmp_path):
    path = tmp_path / "text.gguf"
    assert f"there is no file {str(path)!r}" in refusal(path, "ngram")
    assert "there is no file" in refusal(f"{path}:threads=1", "ngram")
    path.write_text("a model")
    assert "invalid magic characters: 'a mo', expected 'GGUF'" in refusal(path, "ngram")


def test_kinds_of_models_that_cannot_take_part(tmp_path):
    for architecture, words in (
        ("t5", "t5 has an encoder"),
        ("dream", "dream writes all of a text at once"),
        ("llama", "the file has no vocabulary"),
    ):
        assert words in refusal(header_only(tmp_path / "model.gguf", architecture), "ngram")


def test_a_draft_with_some_other_tokens_drafts_and_one_with_many_is_refused(gguf, tmp_path, caplog):
    for added, path in ((2, tmp_path / "near.gguf"), (60, tmp_path / "far.gguf")):
        tokenizer = AutoTokenizer.from_pretrained(zoo.path("draft"))
        model = AutoModelForCausalLM.from_pretrained(zoo.path("draft"))
        tokenizer.add_tokens([f"zebra{i}" for i in range(added)])
        model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
        write_gguf(model, tokenizer, path, "float32")
    for target in (gguf("target"), zoo.path("target")):
        said = refusal(target, tmp_path / "far.gguf")
        assert "differ in 60 tokens, first in token 1003: none and 'zebra0'" in said
        assert "a draft may differ in 5% of them ('suffix' drafts for any target, a smaller model" in said
        pair = load_pair(target, tmp_path / "near.gguf")
        assert "differ in 2 tokens, first in token 1003: none and 'zebra0'; the draft proposes none" in caplog.text
        asked = {"temperature": 0, "max_new_tokens": 20}
        drafted = generate(pair, EXAMPLES[0].prompt, num_speculative_tokens=4, **asked)
        plain = generate(pair, EXAMPLES[0].prompt, num_speculative_tokens=0, **asked)
        assert drafted.token_ids == plain.token_ids
        assert drafted.metrics.accepted > 0
        caplog.clear()


def test_a_missing_library_is_told_by_the_line_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    with pytest.raises(ValueError, match="GGUF files need llama-cpp-python: run ") as error:
        library.__wrapped__()
    assert str(error.value).endswith(install_command("llama-cpp"))


def test_what_only_models_of_transformers_can_do(gguf):
    path = gguf("target")
    assert "whose weights are read as they are stored: torch.bfloat16" in refusal(path, "ngram", dtype="bfloat16")
    assert "rows of a GGUF file are on the CPU" in refusal(path, "ngram", device="meta")
    assert "has no list of layers to leave some out of" in refusal(path, "early_exit:layers=2")
    lookup = CandidateGeneratorDrafter(PromptLookupCandidateGenerator(max_length=64))
    pair = Pair(opened(path), lookup, load_pair(path, "ngram").tokenizer)
    with pytest.raises(ValueError, match="need a target of transformers, but it is"):
        generate(pair, PROMPT)
