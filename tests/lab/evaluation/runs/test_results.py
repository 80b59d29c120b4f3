"""Result files: costs without a bound, columns that are not known, journals, and texts that are scored anew."""

from __future__ import annotations

import json
import math
from contextlib import contextmanager

import numpy as np
import pytest
from support.result_files import made, write
from support.tables import all_of

from cactus_decoding.lab.evaluation.runs.results import AUDITED, Journal, journal_of, opened, read_results


def test_infinite_costs_and_what_nobody_knows_come_back_from_a_file(tmp_path):
    result = made("cactus:delta=1.0", 4, problems=2)
    answers = dict(result.answers) | {name: [math.inf, 1.0] for name in AUDITED}
    path = write(tmp_path / "infinite.jsonl", [type(result)(result.config, answers, {})])
    assert "Infinity" not in path.read_text()
    (read,) = read_results(path)
    assert read.column("nats").tolist() == [math.inf, 1.0]
    unknown = made("cactus:delta=1.0", 4, problems=2, scored=False, audited=False)
    (read,) = read_results(write(path, [unknown]))
    assert np.isnan(read.column("right")).all()
    assert (read.scored, read.audited) == (False, False)


def entry(place: int) -> dict:
    return {"id": str(place), "seconds": 0.5, "metered": 3, "nats": math.inf, "tv": 1.0, "max_log_ratio": math.inf}


@contextmanager
def journal_at(path, finished=()):
    journal = Journal(path)
    yield journal
    journal.finish(finished)


def test_a_journal_keeps_answers_in_order_forgets_finished_runs_and_is_removed_when_it_is_empty(tmp_path):
    path = journal_of(tmp_path / "results.jsonl")
    with journal_at(path, finished=["one"]) as journal:
        for place in range(3):
            journal.add("one", entry(place))
            journal.add("other", entry(place))
    with journal_at(path, finished=["other"]) as again:
        assert again.entries("other") == [entry(place) for place in range(3)]  # unbounded costs stay so
        assert again.entries("one") == again.entries("third") == []
    assert list(tmp_path.iterdir()) == []


def test_a_line_that_a_kill_cut_off_is_passed_over_and_not_added_to(tmp_path):
    path = tmp_path / "journal"
    with journal_at(path) as journal:
        journal.add("one", entry(0))
        journal.add("one", entry(1))
    data, more = path.read_bytes(), entry(1)
    for cut in range(data.find(b"\n"), len(data)):
        path.write_bytes(data[:cut])
        kept = [entry(0), entry(1)] if cut == len(data) - 1 else [entry(0)]
        with journal_at(path) as again:
            assert again.entries("one") == kept
            assert path.read_bytes() == data[:cut], "nothing is written before something is added"
            again.add("one", more)
            assert again.entries("one") == [*kept, more]
        with journal_at(path) as again:
            assert again.entries("one") == [*kept, more]


def test_another_scorer_reads_the_same_texts(tmp_path, succeed, refused):
    asked, out, new = tmp_path / "sums.jsonl", tmp_path / "results.jsonl", tmp_path / "new.jsonl"
    lines = [{"id": str(i), "prompt": f"{i} + {i} =", "answer": str(2 * i)} for i in range(3)]
    asked.write_text("".join(json.dumps(line) + "\n" for line in lines))
    task = f"jsonl:path={asked},extract="
    succeed("eval", "--task", f"{task}none", "--output", str(out), "--max-new-tokens", "4", "--token-ids")
    value = json.loads(out.read_text())
    answers = value["answers"]
    assert all(isinstance(text, str) for text in answers["text"])
    assert [len(ids) for ids in answers["token_ids"]] == answers["generated"]
    assert answers["right"] == [None] * 3
    answers["text"] = ["so 0", "it is 3", "4"]
    out.write_text(json.dumps(value) + "\n")
    before = out.read_bytes()
    rescore = ("eval", "--rescore", str(out), "--task", f"{task}last_number", "--output")
    succeed(*rescore, str(new))
    (result,) = read_results(new)
    assert result.answers["right"] == [True, False, True]
    assert result.provenance["rescored"]["from"] == str(out)
    assert out.read_bytes() == before
    asked.write_text(asked.read_text().replace("2 + 2", "2 + 3"))
    assert "answers other problems" in refused(*rescore, str(tmp_path / "third.jsonl"))


GOOD = made("lossless", 4).line()


@all_of("text, message", [
    ("hello", "line 1: this is not a result of cactus eval"),
    ('{"prompt": "a"}\n', "line 1: this is not a result of cactus eval"),
    (GOOD + "{broken\n", "line 2: this is not JSON"),
    (GOOD.replace('"lossless"', '"magic"', 1), "line 1: this is not a result of cactus eval: unknown rule 'magic'"),
    (GOOD.replace('"schema": 1', '"schema": 7'), "line 1: schema is 7, but this version reads schema 1"),
    (GOOD.replace('"task"', '"quest"', 1), "lacks"),
    (GOOD.replace('"steps": [10, ', '"steps": ['), "line 1: the answers must have 60 entries"),
])  # fmt: skip
def test_a_line_that_cannot_be_used_is_named(tmp_path, text, message):
    path = tmp_path / "a.jsonl"
    path.write_text(text)
    with pytest.raises(ValueError, match=f"a.jsonl, .*{message}"):
        read_results(path)


def test_opening_writes_nothing_and_adding_keeps_every_whole_run(tmp_path):
    """A file may lack its last line end, such as one that an editor saved: its last run is as good as the others."""
    runs = [made("lossless", length, problems=2) for length in (2, 4, 8)]
    first, second, third = (each.line().encode() for each in runs)
    path = tmp_path / "results.jsonl"
    for data, whole in (
        (first[:-1], 1), (first + second[:-1], 2), (first + second, 2), (first + second[:-2], 1), (first[:40], 0),
        (first + second[:1], 1), (b"", 0),
    ):  # fmt: skip
        path.write_bytes(data)
        assert [each.config for each in read_results(path)] == [each.config for each in runs[:whole]]
        with opened(path) as file:
            assert len(file.results) == whole
        assert path.read_bytes() == data
        with opened(path) as file:
            file.append(runs[2])
        assert path.read_bytes() == b"".join([first, second][:whole]) + third
    for damaged in (first + b"{broken\n" + second, first + b"{}", first + b"\0\0\0"):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="line 2: this is not"), opened(path):
            pass
        assert path.read_bytes() == damaged


def test_two_processes_do_not_share_a_file(tmp_path):
    path = write(tmp_path / "a.jsonl", [made("lossless", 4)])
    with opened(path), pytest.raises(ValueError, match="another process"), opened(path):
        pass
