"""HumanEval's answers are programs, which are read as lm-evaluation-harness reads them, and run."""

from __future__ import annotations

import gzip
import importlib
import json
from types import SimpleNamespace

import pytest
from support.result_files import made

from cactus_decoding.lab.evaluation.runs.summary import pass_at, summarise
from cactus_decoding.lab.evaluation.tasks.sources import parse_task

PROBLEMS = [
    {
        "task_id": f"HumanEval/{i}",
        "prompt": f'def add{i}(x: int) -> int:\n    """Add {i} to x.\n    >>> add{i}(1)\n    {i + 1}\n    """\n',
        "entry_point": f"add{i}",
        "test": f"\ndef check(candidate):\n    assert candidate(1) == {i + 1}\n    assert candidate(-1) == {i - 1}\n",
    }
    for i in range(10)
]
ANSWERS = (
    "    return x + {i}\n",
    "    return x - {i}\n",
    "    return x +\n",
    "    y = {i}\n    return x + y\n```\nIt adds.",
)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "problems.jsonl.gz"
    path.write_bytes(gzip.compress("".join(json.dumps(each) + "\n" for each in PROBLEMS).encode()))
    return path


@pytest.fixture
def harness(monkeypatch):
    """Return lm-evaluation-harness's own reading of answers; its metric is fetched from the hub, so not here."""
    ready = SimpleNamespace(compute=lambda **given: None)
    monkeypatch.setattr("evaluate.load", lambda name: ready)
    return importlib.import_module("lm_eval.tasks.humaneval.utils")


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning")
def test_forty_answers_make_the_programs_that_the_harness_makes(path, harness):
    for chat, build in ((False, harness.build_predictions), (True, harness.build_predictions_instruct)):
        task = parse_task(f"humaneval:path={path}", chat=chat)
        for document, problem in zip(PROBLEMS, task.problems, strict=True):
            texts = [text.format(i=problem.id[-1]) for text in ANSWERS]
            (theirs,) = build([texts], [document])
            test = f"{document['test']}\ncheck({document['entry_point']})"  # its doc_to_target
            assert [task.judge.program(problem, text) for text in texts] == [f"{each}\n{test}" for each in theirs]


def test_what_passes_the_tests_is_right(path):
    for chat, expected in ((False, [True, False, False, False]), (True, [True, False, False, True])):
        task = parse_task(f"humaneval:path={path}", chat=chat)
        problem = task.problems[3]
        assert [task.is_right(problem, text.format(i=3)) for text in ANSWERS] == expected


def test_a_chat_begins_the_answer_with_the_function(path):
    plain, chat = (parse_task(f"humaneval:path={path}", 1, chat=each).problems[0] for each in (False, True))
    assert plain.prompt == PROBLEMS[0]["prompt"]
    assert chat.prompt == (
        "Write a solution to the following problem and make sure that it passes the tests:\n"
        f"```python\n{PROBLEMS[0]['prompt']}\n```\n"
    )
    assert chat.begun == f"Here is the completed function:\n```python\n{PROBLEMS[0]['prompt']}\n"


def test_no_program_runs_that_nobody_allowed(path, run, tmp_path):
    out = tmp_path / "results.jsonl"
    given = (
        "eval",
        "--task",
        f"humaneval:path={path}",
        "--problems",
        "1",
        "--max-new-tokens",
        "4",
        "--output",
        str(out),
    )
    code, _, err = run(*given)
    assert code == 2
    assert err.startswith("cactus: humaneval runs programs that a model wrote")
    code, text, err = run(*given, "--allow-code-execution", "--chat")
    assert code == 0, err
    assert "0.000" in text
    code, _, err = run("eval", "--rescore", str(out), *given[1:3], "--output", str(tmp_path / "again.jsonl"))
    assert (code, "give --allow-code-execution" in err) == (2, True)


def test_a_broken_gzip_file_is_named(path):
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ValueError, match="is not a whole gzip file"):
        parse_task(f"humaneval:path={path}")


def test_pass_at_k_is_unbiased():
    # of all ways to draw k of n answers, those with a right one among them
    assert pass_at([[1, 0, 0, 0], [1, 1, 0, 0]], 2).tolist() == pytest.approx([3 / 6, 5 / 6])
    assert pass_at([[0, 0], [1, 1]], 2).tolist() == [0, 1]
    assert pass_at([[1, 0, 1]], 1).tolist() == pytest.approx([2 / 3])


def test_several_seeds_say_how_often_one_of_k_answers_is_right():
    results = [made("lossless", 4, problems=8, seed=seed, right=0.5) for seed in range(3)]
    for seed, result in enumerate(results):
        result.answers["right"][:] = [place % 3 <= seed for place in range(8)]
    (summary,) = summarise(results)
    assert summary.metrics["score"].value == pytest.approx((3 * 3 + 3 * 2 + 2 * 1) / 24)
    assert summary.metrics["pass_at_2"].value == pytest.approx((3 + 3 + 2 * (2 / 3)) / 8)
    assert summary.metrics["pass_at_5"] is None
