"""The journal: answers of unfinished runs come back as they were, torn lines and finished runs do not."""

from __future__ import annotations

import math
from contextlib import contextmanager

from cactus_decoding.lab.evaluation.runs.results import Journal, journal_of


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


def test_unbounded_costs_are_read(tmp_path):
    path = tmp_path / "journal"
    path.write_text('{"of": "one", "row": {"id": "0", "nats": "inf"}}\n')
    with journal_at(path) as journal:
        assert journal.entries("one") == [{"id": "0", "nats": math.inf}]
