"""Stored answers are scored anew by the tasks themselves, and files without texts say so."""

from __future__ import annotations

import json

import pytest

from cactus_decoding.lab.evaluation.run_config import RunConfig
from cactus_decoding.lab.evaluation.runs.results import read_results

LINES = [{"id": str(i), "prompt": f"{i} + {i} =", "answer": str(2 * i)} for i in range(3)]


@pytest.fixture
def answered(tmp_path, run):
    """A result file of three questions without a score, and the file of the questions."""
    asked, out = tmp_path / "sums.jsonl", tmp_path / "results.jsonl"
    asked.write_text("".join(json.dumps(line) + "\n" for line in LINES))
    task = f"jsonl:path={asked},extract=none"
    code, _, err = run("eval", "--task", task, "--output", str(out), "--max-new-tokens", "4", "--token-ids")
    assert code == 0, err
    return asked, out


def test_texts_and_tokens_are_kept(answered):
    answers = read_results(answered[1])[0].answers
    assert all(isinstance(text, str) for text in answers["text"])
    assert [len(ids) for ids in answers["token_ids"]] == answers["generated"]
    assert answers["right"] == [None] * 3


def test_another_scorer_reads_the_same_texts(answered, tmp_path, run):
    asked, out = answered
    before, new = out.read_bytes(), tmp_path / "new.jsonl"
    value = json.loads(before)
    value["answers"]["text"] = ["so 0", "it is 3", "4"]
    out.write_text(json.dumps(value) + "\n")
    before = out.read_bytes()
    code, _, err = run("eval", "--rescore", str(out), "--task", f"jsonl:path={asked},extract=last_number",
                       "--output", str(new))  # fmt: skip
    assert code == 0, err
    (result,) = read_results(new)
    assert result.answers["right"] == [True, False, True]
    assert result.provenance["rescored"]["from"] == str(out)
    assert out.read_bytes() == before
    asked.write_text(asked.read_text().replace("2 + 2", "2 + 3"))
    code, _, err = run("eval", "--rescore", str(out), "--task", f"jsonl:path={asked},extract=last_number",
                       "--output", str(tmp_path / "third.jsonl"))  # fmt: skip
    assert code == 2
    assert "answers other problems" in err


def test_a_file_of_version_0_1_is_read_and_cannot_be_rescored(answered, tmp_path, run):
    asked, out = answered
    value = json.loads(out.read_text())
    for name in ("text", "token_ids"):
        del value["answers"][name]
    out.write_text(json.dumps(value) + "\n")
    assert read_results(out)[0].config.problems == 3
    code, _, err = run("eval", "--rescore", str(out), "--task", f"jsonl:path={asked},extract=last_number",
                       "--output", str(tmp_path / "new.jsonl"))  # fmt: skip
    assert code == 2
    assert "holds no texts" in err
    assert err.count("\n") == 1


def test_a_gguf_run_says_what_read_it():
    old = RunConfig("t", "model.gguf", "ngram").as_dict() | {"engine": "transformers"}
    assert RunConfig.from_dict(old).engine == "llama-cpp"
    assert RunConfig("t", "model", "ngram").engine == "transformers"


def test_an_engine_that_does_not_read_the_target_is_refused(run, tmp_path):
    code, _, err = run("eval", "--engine", "llama-cpp", "--output", str(tmp_path / "r.jsonl"))
    assert code == 2
    assert "reads GGUF files" in err
