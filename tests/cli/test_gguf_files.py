"""Commands with GGUF files in the place of models."""

from __future__ import annotations

import json

import pytest

from cactus_decoding.lab.evaluation.runs.results import read_results
from cactus_decoding.lab.frontier.recorded_rows import read_rows
from cactus_decoding.zoo.word_problems import EXAMPLES

PROMPT = EXAMPLES[0].prompt


@pytest.fixture
def models(gguf, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return "--target", f"{gguf('target', 'q8_0')}:context_size=512", "--draft", str(gguf("worded", "q8_0"))


def test_generate_and_trace(run, succeed, models, tmp_path):
    given = ("--rule", "cactus:delta=1", "--top-p", "0.95", "--protect", "digits", "--budget", "0.5", "--seed", "1")
    given += ("--num-speculative-tokens", "6")
    out, _ = succeed("generate", PROMPT, *models, *given, "--trace", "new.jsonl", "--json")
    answer = json.loads(out)
    assert answer["finish_reason"] == "stop"
    assert answer["metrics"]["accepted"] > answer["metrics"]["steps"]
    assert answer["arguments"]["target"] == models[1]
    header = json.loads((tmp_path / "new.jsonl").read_text().splitlines()[0])
    assert header["target"] == models[1]
    assert header["provenance"]["versions"]["llama_cpp"]
    assert run("trace", "new.jsonl")[0] == 0
    assert "43" in (tmp_path / "new.html").read_text()


def test_chat_asks_by_the_template_of_the_file(run, models):
    given = (*models, "--json", "--temperature", "0")
    ways = (EXAMPLES[0].question, "--chat"), (PROMPT,)
    asked, plain = (json.loads(run("generate", *way, *given)[1]) for way in ways)
    assert asked["token_ids"] == plain["token_ids"]
    assert asked["arguments"]["prompt"] == PROMPT


@pytest.mark.slow
def test_eval(succeed, models, tmp_path):
    given = ("--rule", "lossless", "--rule", "clamped:width=1", "--num-speculative-tokens", "0,4", "--problems", "2")
    out, _ = succeed("eval", *models, *given, "--output", "new.jsonl")
    assert "clamped:width=1.0 coupled ×4" in out
    assert "llama_cpp" in (tmp_path / "new.jsonl").read_text()


@pytest.mark.slow
def test_frontier(succeed, refused, models, tmp_path):
    given = ("--positions", "40", "--points", "2", "--family", "clamped", "--protect", "none", "--protect", "digits",
             "--rows", "rows.npz", "--output", "new.json")  # fmt: skip
    out, _ = succeed("frontier", *models, *given, "--at", "kl=0.05")
    assert "clamped:width=50.0 protecting digits" in out
    assert "At kl=0.05: --rule " in out
    assert read_rows(tmp_path / "rows.npz").settings["chat"] is True
    assert "recorded with chat=True, but None is asked for" in refused("frontier", *models, *given, "--no-chat")


def test_eval_asks_by_the_template_of_the_file_unless_told_otherwise(succeed, models, tmp_path):
    given = ("--num-speculative-tokens", "2", "--problems", "2", "--max-new-tokens", "8", "--output", "new.jsonl")
    for more in ((), ("--no-chat",), ("--no-chat", "--draft", "suffix")):
        out, err = succeed("eval", *models, *given, *more)
        assert ("the target is asked by its chat template" in err) == (more == ())
        assert ("llama-cpp, chat" in " ".join(out.split())) == (more == ())
    asked, plain, *_ = read_results(tmp_path / "new.jsonl")
    assert (str(asked.config.chat), plain.config.chat) == ("chat", None)
    assert asked.answers["text"] == plain.answers["text"], "this template writes what the problems are written in"
    _, err = succeed("eval", "--rescore", "new.jsonl", "--output", "again.jsonl")
    again = read_results(tmp_path / "again.jsonl")
    assert {each.config.key: each.answers["right"] for each in again} == {
        each.config.key: each.answers["right"] for each in read_results(tmp_path / "new.jsonl")
    }
