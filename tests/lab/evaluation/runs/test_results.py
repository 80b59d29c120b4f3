"""Result files: costs without a bound, columns that are not known, and lines that cannot be used."""

from __future__ import annotations

import json
import math
from contextlib import contextmanager

import numpy as np
import pytest
from support.result_files import made, write

from cactus_decoding.lab.evaluation.runs.results import AUDITED, Journal, journal_of, read_results


def test_infinite_costs_are_infinite_when_read(tmp_path):
    result = made("cactus:delta=1.0", 4, problems=2)
    answers = dict(result.answers) | {name: [math.inf, 1.0] for name in AUDITED}
    path = write(tmp_path / "infinite.jsonl", [type(result)(result.config, answers, {})])
    assert "Infinity" not in path.read_text()
    (read,) = read_results(path)
    assert read.column("nats").tolist() == [math.inf, 1.0]


def test_what_nobody_knows_is_no_number(tmp_path):
    result = made("cactus:delta=1.0", 4, problems=2, scored=False, audited=False)
    (read,) = read_results(write(tmp_path / "a.jsonl", [result]))
    assert np.isnan(read.column("right")).all()
    assert not read.scored
    assert not read.audited


def test_a_line_that_cannot_be_used_is_named(tmp_path):
    path = write(tmp_path / "a.jsonl", [made("lossless", 4, problems=2)])
    line = json.loads(path.read_text())
    line["cell"]["rule"] = "magic"
    path.write_text(json.dumps(line) + "\n")
    with pytest.raises(ValueError, match="line 1: this is not a result of cactus eval: unknown rule 'magic'"):
        read_results(path)


def entry(place: int) -> dict:
    return {"id": str(place), "seconds": 0.5, "metered": 3, "nats": math.inf, "tv": 1.0, "max_log_ratio": math.inf}


@contextmanager
def journal_at(path, finished=()):
    journal = Journal(path)
    yield journal
    journal.finish(finished)


def test_answers_come_back_in_order_and_unbounded_costs_stay_so(tmp_path):
    path = journal_of(tmp_path / "results.jsonl")
    with journal_at(path) as journal:
        for place in range(3):
            journal.add("one", entry(place))
            journal.add("other", entry(place))
    with journal_at(path) as again:
        assert again.entries("one") == [entry(place) for place in range(3)]
        assert again.entries("third") == []


def test_a_line_that_a_kill_cut_off_is_passed_over_and_not_added_to(tmp_path):
    path = tmp_path / "journal"
    with journal_at(path) as journal:
        journal.add("one", entry(0))
        journal.add("one", entry(1))
    data = path.read_bytes()
    for cut in range(data.find(b"\n") + 1, len(data)):
        path.write_bytes(data[:cut])
        with journal_at(path) as again:
            assert again.entries("one") == [entry(0)]
            again.add("one", entry(1))
            assert path.read_bytes() == data


def test_finished_runs_are_forgotten_and_an_empty_journal_is_removed(tmp_path):
    path = tmp_path / "journal"
    with journal_at(path, finished=["one"]) as journal:
        journal.add("one", entry(0))
        journal.add("other", entry(1))
    with journal_at(path, finished=["other"]) as again:
        assert (again.entries("one"), again.entries("other")) == ([], [entry(1)])
    assert list(tmp_path.iterdir()) == []


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


def test_an_engine_that_does_not_read_the_target_is_refused(run, tmp_path):
    code, _, err = run("eval", "--engine", "llama-cpp", "--output", str(tmp_path / "r.jsonl"))
    assert code == 2
    assert "reads GGUF files" in err
