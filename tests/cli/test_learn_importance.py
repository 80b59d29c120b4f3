"""`cactus learn-importance`, `cactus show`, and the use of what they make; resumed after Ctrl-C."""

from __future__ import annotations

import json
import signal

import pytest
from support.command_line import process
from support.importances import digits_file

from cactus_decoding import load_pair, zoo
from cactus_decoding.core.policy.importance import read_importance
from cactus_decoding.core.policy.vocabulary import Vocabulary

SMALL = ("--problems", "24", "--continuations", "1", "--max-new-tokens", "100", "--threads", "1")


@pytest.fixture(scope="module")
def words():
    pair = load_pair()
    return Vocabulary.of(pair.tokenizer, pair.target.model.config.vocab_size)


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """Return what one command wrote, and what it said on stdout and on stderr."""
    out = tmp_path_factory.mktemp("learned") / "importance.safetensors"
    run = process("learn-importance", *SMALL, "--output", str(out))
    said, err = run.communicate(timeout=500)
    assert run.returncode == 0, err
    return out, said, err


@pytest.mark.slow
def test_it_learns_and_what_it_learned_is_shown_and_used(run, learned, tmp_path):
    out, said, err = learned
    assert "ROC AUC out of fold 0." in said
    assert "Answering: 24/24" in err
    assert [path.name for path in out.parent.iterdir()] == [out.name]
    about = read_importance(out).about
    assert (about["target"], about["draft"], about["problems"]) == ("bundled", "bundled:worded", 24)
    assert about["provenance"]["arguments"]["task"] == "word_problems:split=train"
    assert about["fit"]["positions"] > 24
    code, said, err = run("show", str(out))
    assert code == 0, err
    assert "ROC AUC on problems that it was not fitted to: 0." in said
    code, said, err = run("generate", "How many legs do 3 cats have?", "--seed", "1", "--rule", "clamped:width=3",
                          "--importance", str(out), "--max-importance", "0.3", "--json")  # fmt: skip
    assert code == 0, err
    made = json.loads(said)
    assert (made["arguments"]["importance"], made["arguments"]["max_importance"]) == (str(out), 0.3)
    results = tmp_path / "results.jsonl"
    code, said, err = run("eval", "--rule", "clamped:width=3", "--importance", str(out), "--importance-scale",
                          "--problems", "2", "--task", "word_problems:split=validation",
                          "--output", str(results))  # fmt: skip
    assert code == 0, err
    cell = json.loads(results.read_text())["cell"]
    assert (cell["importance"], cell["max_importance"], cell["importance_scale"]) == (str(out), 1.0, True)


@pytest.mark.slow
def test_after_ctrl_c_the_same_command_goes_on(learned, tmp_path):
    command = ("learn-importance", *SMALL, "--output", str(tmp_path / "a.safetensors"))
    first = process(*command)
    assert first.stderr is not None
    while "16/24" not in first.stderr.readline():
        pass
    first.send_signal(signal.SIGINT)
    _, err = first.communicate(timeout=300)
    assert first.returncode == 130
    assert "the same command goes on" in err
    kept = (tmp_path / "a.safetensors.partial").read_text().count("\n")
    assert kept == 16
    second = process(*command)
    _, err = second.communicate(timeout=500)
    assert second.returncode == 0, err
    assert "Answering: 0/24" not in err
    assert read_importance(tmp_path / "a.safetensors") == read_importance(learned[0])
    assert [path.name for path in tmp_path.iterdir()] == ["a.safetensors"]


def test_show_names_the_tokens_that_matter(run, tmp_path, words):
    path = digits_file(tmp_path, words)
    code, said, err = run("show", path, "--tokenizer", "bundled", "--top", "5", "--json")
    assert code == 0, err
    found = json.loads(said)
    most, least = found["tokens"]["target"]["most"], found["tokens"]["target"]["least"]
    assert all(any(c.isdigit() for c in each["text"]) and each["weight"] == 60.0 for each in most)
    assert all(not any(c.isdigit() for c in each["text"]) for each in least)
    assert len(most) == len(least) == len(found["tokens"]["draft"]["most"]) == 5
    assert found["vocabulary"]["tokens"] == len(words.texts)
    code, said, _ = run("show", path, "--tokenizer", str(zoo.path("target")), "--top", "3")
    assert code == 0
    assert "+60.00" in said
    assert "0.800 (95 %: 0.700 to 0.900)" in said
