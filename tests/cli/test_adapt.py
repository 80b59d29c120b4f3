"""`cactus generate --adapt`: what a draft learns from the response."""

from __future__ import annotations

import json

import pytest

from cactus_decoding import zoo
from cactus_decoding.lab.training.adaptation import DraftAdaptation

QUESTION = "Tom has 4 pens and buys 2 boxes of 6 pens. How many pens does he have now?"


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
    code, _, err = run("generate", QUESTION, "--seed", "1", "--verbose", "--adapt", str(tmp_path / "mine"))
    assert code == 0, err
    assert "adapted by " in err
    assert "the same seed gives the same text while the draft is the same" in err
    _, _, err = run("generate", QUESTION, "--seed", "1", "--verbose")
    assert any(line.rstrip().endswith("the same seed gives the same text") for line in err.splitlines())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--adapt", "new", "--draft", "ngram"), "a draft that can be trained is a model of transformers"),
        (("--adapt", "new", "--draft", "early_exit:layers=2"), "a draft that can be trained has weights of its own"),
        (("--adapt", "new", "--target", str(zoo.path("target"))), "a draft is missing for target"),
        (("--adapt", "full"), "cannot adapt in"),
        (("--adapt", "/dev/null/x"), "'/dev/null' is no folder"),
        (("--adapt", "new", "--trace", "trace.jsonl"), "exclude each other"),
    ],
)
def test_mistakes_are_said_in_a_line(run, tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").touch()
    code, _, err = run("generate", QUESTION, *arguments)
    assert (code, err.count("Traceback")) == (2, 0)
    assert said in err
    assert [each.name for each in tmp_path.iterdir()] == ["full"]


def test_an_existing_folder_goes_on_with_its_own_draft_only(run, tmp_path):
    folder = tmp_path / "mine"
    DraftAdaptation.load(folder).save()
    for draft in (str(zoo.path("worded")), "ngram"):
        code, _, err = run("generate", QUESTION, "--adapt", str(folder), "--draft", draft)
        assert (code, f"and not of {draft!r}" in err) == (2, True), err
