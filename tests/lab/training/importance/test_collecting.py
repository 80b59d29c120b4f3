"""Counterfactuals along lossless answers: which positions, what follows, and that a kill loses little."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.interruptions import interrupt_when
from support.tables import all_of

from cactus_decoding import Pair, Request, load_pair, stream
from cactus_decoding.lab.evaluation.runs.results import Journal
from cactus_decoding.lab.evaluation.tasks.sources import parse_task
from cactus_decoding.lab.training.importance import collecting
from cactus_decoding.lab.training.importance.collecting import (
    Collection,
    check_task,
    collect,
    falls,
    rejections,
    sparse,
)

TASK = parse_task("word_problems:split=train", 6)
ASKED = Collection(Request(seed=3, max_new_tokens=100), continuations=2, max_positions=3)


@contextmanager
def kept(path: Path) -> Iterator[Journal]:
    journal = Journal(path)
    try:
        yield journal
    finally:
        journal.finish([])


def test_rejections_are_those_of_the_answer(pair: Pair) -> None:
    request = Request(seed=5, max_new_tokens=100)
    answer, found = rejections(pair, TASK.problems[0].prompt, request)
    fates = [fate for outcome in stream(pair, TASK.problems[0].prompt, request) for fate in outcome.fates]
    assert [each.at for each in found] == [i for i, fate in enumerate(fates) if fate == "recovered"]
    assert len(found) >= 2
    for each in found:
        assert answer[each.at] == each.emitted
        for ids, probs in (each.target, each.draft):
            assert sum(probs) == pytest.approx(1, abs=1e-2)
            assert len(ids) == len(probs)
        drafted = dict(zip(*each.draft, strict=True))[each.drafted]
        assert drafted > dict(zip(*each.target, strict=True)).get(each.drafted, 0.0)  # else it is always accepted
    _, found = rejections(load_pair("bundled", "ngram"), TASK.problems[1].prompt, Request(seed=5))
    assert found
    assert all(each.draft == [[each.drafted], [1.0]] for each in found)  # a draft that is sure
    # rows lose their smallest probabilities only
    assert sparse(torch.tensor([0.5, 1e-7, 0.25, 0.2499999])) == [[0, 2, 3], [0.5, 0.25, 0.25]]


@pytest.mark.slow
def test_without_the_token_a_greedy_answer_is_the_lossless_one(pair: Pair, tmp_path: Path) -> None:
    asked = Collection(Request.from_dict({"temperature": 0, "seed": 0}))
    with kept(tmp_path / "a") as journal:
        entries = collect(pair, TASK, asked, journal, "x")
    seen = tempered = 0
    for problem, entry in zip(TASK.problems, entries, strict=True):
        response = stream(pair, problem.prompt, Request.from_dict({"temperature": 0, "seed": 0}))
        for _ in response:
            pass
        for position in entry["positions"]:
            assert position["right_without"] == [TASK.is_right(problem, response.text)] * 2
            assert position["right_with"][0] == position["right_with"][1]
            assert sum(position["target"][1]) == pytest.approx(1, abs=1e-2)
            tempered += len(position["target"][0]) > 1  # the row before temperature
            seen += 1
    assert seen > 5
    assert tempered > 2


def test_entries_are_the_same_at_once_in_parts_and_after_a_kill(tmp_path: Path, monkeypatch) -> None:
    # A batch of another size adds up in another order: in float64 that is far below the six digits that are kept.
    pair = load_pair(dtype="float64")
    with kept(tmp_path / "a") as journal:
        at_once = collect(pair, TASK, ASKED, journal, "x")
    assert all(len(entry["positions"]) <= 3 for entry in at_once)
    monkeypatch.setattr(collecting, "_AT_ONCE", 2)
    with kept(tmp_path / "b") as journal, pytest.raises(KeyboardInterrupt):
        collect(pair, TASK, ASKED, journal, "x", interrupt_when(lambda done: done == 2))
    told: list[int] = []
    with kept(tmp_path / "b") as journal:
        assert collect(pair, TASK, ASKED, journal, "x", told.append) == at_once
    assert told == [2, 4, 6]
    told.clear()
    with kept(tmp_path / "b") as journal:
        more = parse_task("word_problems:split=train", 8)
        assert collect(pair, more, ASKED, journal, "x", told.append)[:6] == at_once
    assert told == [6, 8]


def test_other_settings_do_not_take_each_others_entries(pair: Pair, tmp_path: Path) -> None:
    problem = TASK.problems[0]
    keys = {
        collecting.key_of(name, asked, asked_problem)
        for name in ("x", "y")
        for asked in (ASKED, replace(ASKED, continuations=3), replace(ASKED, request=Request(seed=4)))
        for asked_problem in (problem, replace(problem, answer="-1"))
    }
    assert len(keys) == 12
    position = {"right_with": [True, False, False, True], "right_without": [True, True, True, False]}
    [found] = falls([{"positions": []}, {"positions": [position]}])  # shares of continuations
    assert (found[0], found[2], found[3]) == (1, 0.5, 0.25)
    assert [x[0] for x in falls([{"positions": [position]}, {"positions": [position]}])] == [0, 1]


@all_of("spelling, said", [("word_problems:split=test,seed=4", "held out"), ("jsonl:path={}", "without an answer"),
                           ("jsonl:path={},extract=none", "without an answer")])  # fmt: skip
def test_tasks_that_must_not_or_cannot_be_learned_from(tmp_path: Path, spelling: str, said: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"prompt": "a"}\n')
    spelling = spelling.format(path)
    with pytest.raises(ValueError, match=said):
        check_task(spelling, parse_task(spelling, 1))
    check_task("word_problems:split=validation", parse_task("word_problems:split=validation", 1))


@all_of("given, said", [
    ({"request": Request("cactus:delta=1")}, "the rule is cactus"),
    ({"request": Request(num_speculative_tokens="auto")}, "must not be 'auto' where importance is learned"),
    ({"request": Request(), "continuations": 0}, "continuations must be at least 1"),
    ({"request": Request(), "max_positions": 0}, "max_positions must be at least 1"),
])  # fmt: skip
def test_collections_that_make_no_sense(given: dict, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Collection(**given)
