"""`--adapt`: what `cactus generate` and `cactus eval` learn while they answer."""

from __future__ import annotations

import json

import pytest

from cactus_decoding import zoo
from cactus_decoding.training.adaptation import DraftAdaptation
from cactus_decoding.training.adapted_folder import AdaptedFolder

QUESTION = "Tom has 4 pens and buys 2 boxes of 6 pens. How many pens does he have now?"
EVAL = ("eval", "--task", "word_problems:split=train", "--problems", "3", "--threads", "1")


def test_generate_begins_a_draft_and_goes_on_with_it(run, tmp_path):
    folder = tmp_path / "mine"
    code, first, err = run("generate", QUESTION, "--seed", "1", "--adapt", str(folder), "--json")
    assert code == 0, err
    assert err.strip().endswith(f"the draft is in {folder}")
    one, record = (folder / "model.safetensors").read_bytes(), folder / "adaptation.json"
    noted = json.loads(record.read_text())
    assert noted["response_seconds"] > 0
    # as if responses had taken so long that there is time for a step
    record.write_text(json.dumps(noted | {"response_seconds": 1000.0}))
    code, second, err = run("generate", QUESTION, "--seed", "1", "--adapt", str(folder), "--json", "--temperature", "0")
    assert code == 0, err
    assert f"adapted by {noted['steps'] + 1} steps" in err
    assert (folder / "model.safetensors").read_bytes() != one
    code, plain, _ = run("generate", QUESTION, "--seed", "1", "--json", "--temperature", "0")
    assert json.loads(second)["text"] == json.loads(plain)["text"]
    assert json.loads(first)["finish_reason"] == "stop"


def test_generate_says_what_was_learned_and_promises_no_text_of_a_draft_that_changes(run, tmp_path):
    code, _, err = run("generate", QUESTION, "--seed", "1", "--adapt", str(tmp_path / "mine"))
    assert code == 0, err
    assert "adapted by " in err
    assert "the same seed gives the same text while the draft is the same" in err
    _, _, err = run("generate", QUESTION, "--seed", "1")
    assert any(line.rstrip().endswith("the same seed gives the same text") for line in err.splitlines())


def test_a_second_process_is_told_in_a_line(run, tmp_path):
    DraftAdaptation.load(tmp_path / "mine").close()
    held = AdaptedFolder(tmp_path / "mine")
    for command in (("generate", QUESTION), (*EVAL, "--output", str(tmp_path / "results.jsonl"))):
        code, _, err = run(*command, "--adapt", str(tmp_path / "mine"))
        assert (code, err.count("Traceback")) == (2, 0)
        assert f"another process is writing '{tmp_path / 'mine'}'" in err
    held.close()


@pytest.mark.slow
def test_eval_names_the_adapting_draft_and_says_what_it_took(run, tmp_path):
    folder, out = tmp_path / "mine", tmp_path / "results.jsonl"
    code, said, err = run(*EVAL, "--adapt", str(folder), "--output", str(out))
    assert code == 0, err
    assert "adapted by" in err
    assert said.splitlines()[-1] == "times leave out what learning took, a tenth at most"
    assert json.loads(out.read_text())["cell"]["draft"] == str(folder)
    assert (folder / "tokenizer.json").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--adapt", "new", "--seeds", "0,1"), "settings could not be compared"),
        (("--adapt", "new", "--draft", "bundled:draft", "--draft", "bundled:worded"), "there are 2 settings"),
        (("--adapt", "new", "--engine", "vllm"), "--adapt trains the draft of --engine transformers"),
        (("--adapt", "new", "--draft", "ngram"), "a draft that can be trained is a model of transformers"),
        (("--adapt", "new", "--draft", "early_exit:layers=2"), "a model of transformers with weights of its own"),
        (("--adapt", "new", "--target", str(zoo.path("target"))), "a draft is missing for target"),
        (("--adapt", "full"), "cannot adapt in"),
        (("--adapt", "/dev/null/x"), "'/dev/null' is no folder"),
    ],
)
def test_mistakes_are_said_in_a_line(run, tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").touch()
    code, _, err = run(*EVAL, "--output", "results.jsonl", *arguments)
    assert (code, err.count("Traceback")) == (2, 0)
    assert said in err
    assert {each.name for each in tmp_path.iterdir()} <= {"full", "results.jsonl"}
    code, _, err = run("generate", QUESTION, "--adapt", "new", "--trace", "trace.jsonl")
    assert (code, "exclude each other" in err) == (2, True)


def test_an_existing_folder_goes_on_with_its_own_draft_only(run, tmp_path):
    folder = tmp_path / "mine"
    DraftAdaptation.load(folder).close()
    other = str(zoo.path("worded"))
    for draft, said in (
        (other, f"and not of {other!r}"),
        ("nonsense/none", "'nonsense/none' was not fetched before"),
        ("ngram", "a draft that can be trained"),
    ):
        code, _, err = run("generate", QUESTION, "--adapt", str(folder), "--draft", draft)
        assert (code, said in err) == (2, True), err
