"""Runs that cannot be compared: read or ended in two ways, timed on two machines, continued by another version."""

from __future__ import annotations

import json
import os

import pytest
from support.result_files import from_where, made, write
from support.tables import all_of

from cactus_decoding.cli.evaluation_table import show_results
from cactus_decoding.core.metrics import Metrics
from cactus_decoding.lab.evaluation.engines.engine import Answer, Engine
from cactus_decoding.lab.evaluation.plan import rescore_file
from cactus_decoding.lab.evaluation.run_config import RunConfig
from cactus_decoding.lab.evaluation.runs.alike import model_files, timed_on, unlike
from cactus_decoding.lab.evaluation.runs.results import journal_of, opened, read_results
from cactus_decoding.lab.evaluation.runs.runner import answer_runs
from cactus_decoding.lab.evaluation.runs.summary import summarise, timed_apart
from cactus_decoding.lab.evaluation.tasks.reading import EXTRACTORS
from cactus_decoding.lab.evaluation.tasks.sources import parse_task
from cactus_decoding.lab.evaluation.tasks.task import Task
from cactus_decoding.lab.reporting.report import make_report, timing_warnings, to_markdown, verdict

HERE = {"machine": {"processor": "of a laptop", "threads": 1}, "versions": {"cactus_decoding": "1.0"}}


class Says(Engine):
    """Says the same to everything, in so many seconds, and is interrupted after a number of answers."""

    def __init__(self, seconds: float, stop_after: int = -1) -> None:
        self._seconds, self._left = seconds, stop_after

    def answer(self, prompt, request):
        self._left -= 1
        if self._left == -1:
            raise KeyboardInterrupt
        return Answer("It is 12, of 13.", "stop", Metrics(generated=7, steps=3, seconds=self._seconds))


@pytest.fixture
def asked(tmp_path):
    """Return a function that answers the same problems, read in some way, and returns the file's runs."""
    problems, out = tmp_path / "sums.jsonl", tmp_path / "results.jsonl"
    problems.write_text("".join(json.dumps({"prompt": f"{i}", "answer": "12"}) + "\n" for i in range(8)))

    def ask(reading="last_number", *, rule="lossless", engine=None, provenance=HERE, target="t", **options):
        task = parse_task(f"jsonl:path={problems},extract={reading}")
        configs = [RunConfig(task.name, target, "d", problems=8).asking(rule=rule)]
        with opened(out) as file:
            answer_runs(configs, {task.name: task}, lambda _: engine or Says(0.5), file, provenance, **options)
        return read_results(out)

    return ask


@all_of("reading, said", [
    ("first_line", "were read by last_number do not go with answers that are read by first_line: .* --rescore"),
    ("regex,pattern=is ([0-9]+)", r"are read by regex:is \(\[0-9\]\+\)"),
    ("none", "are read by none"),
    ("math", "are read by math"),
    ("last_number,stop=.", r"end at the stop strings \[\] do not go .* end at \['.'\]: give another --output"),
])  # fmt: skip
def test_a_file_takes_no_answers_that_are_read_or_ended_in_another_way(asked, tmp_path, reading, said):
    before = asked()
    assert before[0].provenance["reading"] == {"by": "last_number", "stop": []}
    with pytest.raises(ValueError, match=f"answers of task 'jsonl:sums' that .*{said}"):
        asked(reading, rule="clamped:width=1")
    assert len(asked(rule="clamped:width=1")) == 2
    (tmp_path / "results.jsonl").unlink()


def test_a_file_that_does_not_say_how_answers_were_read_is_added_to(asked, tmp_path):
    (result,) = asked()
    older = from_where(result)
    del older.provenance["reading"]
    write(tmp_path / "results.jsonl", [older])
    assert len(summarise(asked("first_line", rule="clamped:width=1"))) == 2


def test_answers_read_anew_go_with_those_that_are_read_so_at_once(asked, tmp_path):
    problems, out, new = (tmp_path / name for name in ("sums.jsonl", "results.jsonl", "new.jsonl"))
    by_letter = f"jsonl:path={problems},extract=regex,pattern=is ([0-9]+)"
    asked()
    (scored,) = rescore_file(out, new, tasks=[by_letter])
    assert scored.provenance["reading"] == {"by": "regex:is ([0-9]+)", "stop": []}
    assert scored.answers["right"] == [True] * 8
    new.replace(out)
    assert len(summarise(asked("regex,pattern=is ([0-9]+)", rule="clamped:width=1"))) == 2
    write(new, [from_where(made("cactus:delta=1.0", 4), reading={"by": "last_number", "stop": []})])
    other = write(tmp_path / "other.jsonl", [from_where(made("lossless", 4), reading={"by": "letter", "stop": []})])
    with pytest.raises(ValueError, match="were read by last_number do not go"):
        summarise([*read_results(new), *read_results(other)])


def first_word(text: str) -> str:
    return text.split()[0]


def test_each_way_to_read_has_a_name_of_its_own(tmp_path):
    sums, rules = tmp_path / "sums.jsonl", tmp_path / "rules.jsonl"
    sums.write_text(json.dumps({"prompt": "p", "answer": "B"}) + "\n")
    rules.write_text(
        json.dumps({"prompt": "p", "instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}) + "\n"
    )
    spelled = [
        *(f"jsonl:path={sums},extract={each}" for each in ("none", "math", "regex,pattern=a", "regex,pattern=b")),
        *(f"jsonl:path={sums},extract={each}" for each in EXTRACTORS),
        f"ifeval:path={rules}", f"ifeval:path={rules},score=loose",
    ]  # fmt: skip
    names = [parse_task(each, 1).reading["by"] for each in spelled]
    loose = "prompt_level_loose_acc"
    assert names == ["none", "math", "regex:a", "regex:b", *EXTRACTORS, "prompt_level_strict_acc", loose]
    assert parse_task("word_problems", 1).reading == {"by": "hashes", "stop": []}
    assert Task("mine", (), first_word).reading["by"] == f"{__name__}.first_word"
    assert Task("mine", (), judge=Says(1.0).answer, stop=("a",)).reading == {
        "by": f"{__name__}.Says.answer", "stop": ["a"],
    }  # fmt: skip


OTHERS = {
    "threads": HERE | {"machine": {"processor": "of a laptop", "threads": 16}},
    "processor": HERE | {"machine": {"processor": "of a server", "threads": 1}},
    "version": HERE | {"versions": {"cactus_decoding": "2.0"}},
    "engine arguments": HERE | {"running": {"engine_args": "{}"}},
}


@all_of("provenance, kept", [*((each, 0) for each in OTHERS.values()), (HERE, 5), (HERE | {"date": "today"}, 5)])
def test_an_interrupted_run_goes_on_only_where_it_was_begun(asked, tmp_path, caplog, provenance, kept):
    out = tmp_path / "results.jsonl"
    with pytest.raises(KeyboardInterrupt):
        asked(engine=Says(1.0, stop_after=5))
    with caplog.at_level("INFO"):
        (result,) = asked(engine=Says(0.1), provenance=provenance)
    assert result.answers["seconds"] == [1.0] * kept + [0.1] * (8 - kept)
    assert ("5 answers of interrupted runs are not used" in caplog.text) == (kept == 0)
    assert journal_of(out).exists() == (kept == 0)
    caplog.clear()
    for path in (out, journal_of(out)):
        path.unlink(missing_ok=True)


def test_an_interrupted_run_does_not_go_on_with_other_weights_or_another_reading(asked, tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    (model / "weights").write_text("one")
    with pytest.raises(KeyboardInterrupt):
        asked(engine=Says(1.0, stop_after=5), target=str(model))
    with pytest.raises(KeyboardInterrupt):
        asked("first_line", engine=Says(0.7, stop_after=5), target=str(model))
    (model / "weights").write_text("three")
    (result,) = asked(engine=Says(0.1), target=str(model))
    assert result.answers["seconds"] == [0.1] * 8


def test_files_of_local_models_are_told_apart_and_other_names_have_none(tmp_path):
    gguf = tmp_path / "a.gguf"
    gguf.write_text("12345")
    os.utime(gguf, ns=(7, 7))
    assert model_files(f"{gguf}:cache=float32") == model_files(str(tmp_path)) == [("a.gguf", 5, 7)]
    for name in ("", "bundled:worded", "owner/name", "x" * 5000, "nul\0", str(tmp_path / "no.gguf")):
        assert model_files(name) == []


def test_what_times_depend_on_is_the_machine_or_the_host_of_a_server():
    machine = {"processor": "a", "threads": 4}
    assert timed_on({}) == {}
    assert timed_on({"machine": machine, "running": {"workers": 2, "threads": 1}}) == {
        "processor": "a", "threads": 1, "workers": 2,
    }  # fmt: skip
    served = {"machine": machine, "server": {"address": "http://far:8000"}}
    assert timed_on(served) == {"processor": "a", "server": "far"}
    assert unlike(timed_on(served), timed_on({"machine": machine | {"threads": 1}})) == []


def machine(threads: int, **more) -> dict:
    return {"machine": {"processor": "a", "threads": threads}, **more}


def test_times_of_another_machine_or_other_threads_are_not_compared(capsys):
    lossless, relaxed = made("lossless", 4), made("clamped:width=1.0", 4, seconds=0.5)
    one = from_where(lossless, **machine(1))
    for provenance, named in (
        (machine(16), "threads"),
        (machine(1, running={"workers": 2}), None),  # the other does not say
        ({"machine": {"processor": "b", "threads": 2}}, "processor and threads"),
        (machine(1), None),
        ({}, None),
    ):
        rows = summarise([one, from_where(relaxed, **provenance)])
        compared = rows[1].metrics["seconds_ratio"]
        assert (compared is None) == (named is not None)
        assert rows[1].metrics["length_ratio"] is not None
        assert rows[1].known("seconds_per_answer").value == pytest.approx(0.5, rel=0.1)
        said = [] if named is None else [
            f"Times are not compared: those of clamped:width=1.0 ×4 and lossless ×4 were taken with different {named}."
        ]  # fmt: skip
        assert timing_warnings(rows) == said
        results = [result for row in rows for result in row.group.results]
        page = to_markdown(make_report([("a.jsonl", results)]))
        assert ("Times are not compared" in page) == bool(said)
        show_results(results, [result.config for result in results], False)
        assert ("Times are not compared" in capsys.readouterr().out) == bool(said)
        unlike_lossless = "There is no verdict: times were not taken in the same way as those of lossless."
        assert (verdict(rows) == unlike_lossless) == bool(said)


def test_a_baseline_that_was_timed_alike_is_preferred():
    one = from_where(made("lossless", 4), **machine(1))
    two = from_where(made("lossless", 2, seconds=3.0), **machine(2))
    relaxed = from_where(made("clamped:width=1.0", 4), **machine(2))
    rows = summarise([one, two, relaxed])
    assert rows[2].baseline is rows[1].group
    assert rows[2].known("seconds_ratio").value == pytest.approx(1 / 3, rel=0.1)
    assert timing_warnings(rows) == []


def test_seeds_of_two_machines_are_compared_seed_by_seed():
    def two(rule, threads):
        return [from_where(made(rule, 4, seed=seed), **machine(each)) for seed, each in enumerate(threads)]

    alike = summarise([*two("lossless", (1, 2)), *two("clamped:width=1.0", (1, 2))])
    assert timed_apart(alike[0].group, alike[1].group) == []
    for others in ((2, 1), (1, 1), (1,)):
        apart = summarise([*two("lossless", (1, 2)), *two("clamped:width=1.0", others)])
        assert timed_apart(apart[0].group, apart[1].group) == ["threads"]
