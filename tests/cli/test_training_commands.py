"""`cactus train-draft`, `learn-importance`, `show` and `diagnose`: what they write, and that Ctrl-C loses little."""

from __future__ import annotations

import json
import re
import signal

import pytest
from support.command_line import process
from support.draft_training import write_data
from support.importances import digits_file
from support.patience import PATIENCE

from cactus_decoding import load_pair, zoo
from cactus_decoding.core.files.writing import part_path
from cactus_decoding.core.policy.importance import read_importance
from cactus_decoding.core.policy.vocabulary import Vocabulary


@pytest.fixture
def command(tmp_path):
    data = write_data(tmp_path / "data.jsonl")
    return ("train-draft", "--target", "bundled", "--draft", "bundled:worded", "--data", str(data), "--steps", "6",
            "--batch", "2", "--evaluate-every", "2", "--output", str(tmp_path / "draft"), "--threads", "1")  # fmt: skip


@pytest.mark.slow
def test_a_draft_is_trained_and_used(succeed, command, tmp_path):
    out, err = succeed(*command)
    first, *_, last = out.splitlines()
    assert re.fullmatch(r"lossless: \d\.\d\d to \d\.\d\d tokens per step of 6 proposals", first)
    assert last == f"wrote {tmp_path / 'draft'}, with a README.md"
    assert "Training: 6/6" in err
    assert "acceptance length" in err
    assert "Measuring the draft: 3/3" in err
    assert sorted(each.name for each in tmp_path.iterdir()) == ["data.jsonl", "draft"]
    out, err = succeed("generate", "How many legs do 3 cats have?", "--draft", str(tmp_path / "draft"), "--seed", "1",
                       "--json")  # fmt: skip
    assert json.loads(out)["arguments"]["draft"] == str(tmp_path / "draft")


@pytest.mark.slow
def test_after_ctrl_c_the_same_command_goes_on(command, tmp_path):
    first = process(*command)
    assert first.stderr is not None
    while "Training: 3/6" not in first.stderr.readline():
        pass
    first.send_signal(signal.SIGINT)
    _, err = first.communicate()
    work = part_path(tmp_path / "draft")
    assert first.returncode == 130
    assert err.splitlines()[-1] == f"cactus: interrupted; what is done is in {work}: the same command goes on"
    assert work.exists()
    second = process(*command)
    out, err = second.communicate()
    assert second.returncode == 0, err
    assert "Training: 1/6" not in err
    assert out.splitlines()[-1].startswith("wrote")
    assert not work.exists()


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
    said, err = run.communicate(timeout=PATIENCE)
    assert run.returncode == 0, err
    return out, said, err


@pytest.mark.slow
def test_it_learns_and_what_it_learned_is_shown_and_used(succeed, learned, tmp_path):
    out, said, err = learned
    assert "ROC AUC out of fold 0." in said
    assert "Answering: 24/24" in err
    assert [path.name for path in out.parent.iterdir()] == [out.name]
    about = read_importance(out).about
    assert (about["target"], about["draft"], about["problems"]) == ("bundled", "bundled:worded", 24)
    assert about["provenance"]["arguments"]["task"] == "word_problems:split=train"
    assert about["fit"]["positions"] > 24
    said, err = succeed("show", str(out))
    assert "ROC AUC on problems that it was not fitted to: 0." in said
    said, err = succeed("generate", "How many legs do 3 cats have?", "--seed", "1", "--rule", "clamped:width=3",
                        "--importance", str(out), "--max-importance", "0.3", "--json")  # fmt: skip
    made = json.loads(said)
    assert (made["arguments"]["importance"], made["arguments"]["max_importance"]) == (str(out), 0.3)
    results = tmp_path / "results.jsonl"
    said, err = succeed("eval", "--rule", "clamped:width=3", "--importance", str(out), "--importance-scale",
                        "--problems", "2", "--task", "word_problems:split=validation",
                        "--output", str(results))  # fmt: skip
    cell = json.loads(results.read_text())["cell"]
    assert (cell["importance"], cell["max_importance"], cell["importance_scale"]) == (str(out), 1.0, True)


@pytest.mark.slow
def test_after_ctrl_c_learning_importance_goes_on(learned, tmp_path):
    command = ("learn-importance", *SMALL, "--output", str(tmp_path / "a.safetensors"))
    first = process(*command)
    assert first.stderr is not None
    while "16/24" not in first.stderr.readline():
        pass
    first.send_signal(signal.SIGINT)
    _, err = first.communicate(timeout=PATIENCE)
    assert first.returncode == 130
    assert "the same command goes on" in err
    kept = (tmp_path / "a.safetensors.partial").read_text().count("\n")
    assert kept == 16
    second = process(*command)
    _, err = second.communicate(timeout=PATIENCE)
    assert second.returncode == 0, err
    assert "Answering: 0/24" not in err
    assert read_importance(tmp_path / "a.safetensors") == read_importance(learned[0])
    assert [path.name for path in tmp_path.iterdir()] == ["a.safetensors"]


def test_show_names_the_tokens_that_matter(succeed, tmp_path, words):
    path = digits_file(tmp_path, words)
    said, _ = succeed("show", path, "--tokenizer", "bundled", "--top", "5", "--json")
    found = json.loads(said)
    most, least = found["tokens"]["target"]["most"], found["tokens"]["target"]["least"]
    assert all(any(c.isdigit() for c in each["text"]) and each["weight"] == 60.0 for each in most)
    assert all(not any(c.isdigit() for c in each["text"]) for each in least)
    assert len(most) == len(least) == len(found["tokens"]["draft"]["most"]) == 5
    assert found["vocabulary"]["tokens"] == len(words.texts)
    said, _ = succeed("show", path, "--tokenizer", str(zoo.path("target")), "--top", "3")
    assert "+60.00" in said
    assert "0.800 (95 %: 0.700 to 0.900)" in said


def test_it_says_where_rejections_are_and_what_each_way_promises(succeed, tmp_path):
    out = tmp_path / "found.json"
    said, err = succeed("diagnose", "--problems", "8", "--draft-cost", "0.25", "--threads", "1", "--output", str(out))
    assert "Answering: 8/8" in err
    (total,) = re.findall(r"^Probing: (\d+)/\1$", err, re.MULTILINE)
    found = json.loads(out.read_text())
    assert int(total) == 400 + found["positions"]
    assert "rejections: " in said
    assert found["draft_cost"] == 0.25
    assert found["rule"] == "clamped:width=3.0 protecting digits"
    assert found["provenance"]["arguments"]["draft"] == "bundled:worded"
    assert [each["name"] for each in found["promises"]][:4] == ["lossless", "trained", "relaxed", "tree"]
    assert all(line in said for line in found["advice"])
