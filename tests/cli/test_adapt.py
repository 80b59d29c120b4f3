"""`--adapt`: what `cactus generate` and `cactus eval` learn while they answer."""

from __future__ import annotations

import json

import pytest

from cactus_decoding import zoo

QUESTION = "Tom has 4 pens and buys 2 boxes of 6 pens. How many pens does he have now?"
EVAL = ("eval", "--task", "word_problems:split=train", "--problems", "3", "--threads", "1")


def test_generate_begins_a_draft_and_goes_on_with_it(run, tmp_path):
    folder = tmp_path / "mine"
    code, first, err = run("generate", QUESTION, "--seed", "1", "--adapt", str(folder), "--json")
    assert code == 0, err
    one = (folder / "model.safetensors").read_bytes()
    assert one != (zoo.path("worded") / "model.safetensors").read_bytes()
    code, second, err = run("generate", QUESTION, "--seed", "1", "--adapt", str(folder), "--json", "--temperature", "0")
    assert code == 0, err
    assert (folder / "model.safetensors").read_bytes() != one
    code, plain, _ = run("generate", QUESTION, "--seed", "1", "--json", "--temperature", "0")
    assert json.loads(second)["text"] == json.loads(plain)["text"]
    assert json.loads(first)["finish_reason"] == "stop"


@pytest.mark.slow
def test_eval_names_the_adapting_draft_and_says_what_it_took(run, tmp_path):
    folder, out = tmp_path / "mine", tmp_path / "results.jsonl"
    code, _, err = run(*EVAL, "--adapt", str(folder), "--out", str(out))
    assert code == 0, err
    assert "adapted by" in err
    assert json.loads(out.read_text())["cell"]["draft"] == str(folder)
    assert (folder / "tokenizer.json").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--adapt", "new", "--seeds", "0,1"), "settings could not be compared"),
        (("--adapt", "new", "--draft", "bundled:draft", "--draft", "bundled:worded"), "there are 2 settings"),
        (("--adapt", "new", "--engine", "vllm"), "--adapt trains the draft of --engine transformers"),
        (("--adapt", "new", "--draft", "ngram"), "a draft that can be trained is a model of transformers"),
        (("--adapt", "/dev/null/x"), "'/dev/null' is no folder"),
    ],
)
def test_mistakes_are_said_in_a_line(run, tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    code, _, err = run(*EVAL, "--out", "results.jsonl", *arguments)
    assert (code, err.count("Traceback")) == (2, 0)
    assert said in err
    assert not (tmp_path / "new").exists()
    code, _, err = run("generate", QUESTION, "--adapt", "new", "--trace", "trace.jsonl")
    assert (code, "exclude each other" in err) == (2, True)
