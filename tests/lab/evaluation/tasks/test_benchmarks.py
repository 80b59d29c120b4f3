"""HumanEval's and IFEval's answers are read, run and judged as lm-evaluation-harness does it."""

from __future__ import annotations

import builtins
import gzip
import importlib
import json
from types import SimpleNamespace

import pytest

from cactus_decoding.lab.evaluation.tasks.sources import parse_task

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning", "ignore::SyntaxWarning"
)

PROBLEMS = [
    {
        "task_id": f"HumanEval/{i}",
        "prompt": f'def add{i}(x: int) -> int:\n    """Add {i} to x.\n    >>> add{i}(1)\n    {i + 1}\n    """\n',
        "entry_point": f"add{i}",
        "test": f"\ndef check(candidate):\n    assert candidate(1) == {i + 1}\n    assert candidate(-1) == {i - 1}\n",
    }
    for i in range(10)
]
ANSWERS = ("    return x + {i}\n", "    return x - {i}\n", "    return x +\n",
           "    y = {i}\n    return x + y\n```\nIt adds.")  # fmt: skip


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


def test_forty_answers_make_the_programs_that_the_harness_makes(path, harness):
    for chat, build in ((False, harness.build_predictions), (True, harness.build_predictions_instruct)):
        task = parse_task(f"humaneval:path={path}", chat=chat)
        for document, problem in zip(PROBLEMS, task.problems, strict=True):
            texts = [text.format(i=problem.id[-1]) for text in ANSWERS]
            (theirs,) = build([texts], [document])
            test = f"{document['test']}\ncheck({document['entry_point']})"  # its doc_to_target
            assert [task.judge.code(problem, text) for text in texts] == theirs
            assert task.judge.parts[problem.id].tests == test


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


def test_no_program_runs_that_nobody_allowed(path, run, succeed, refused, tmp_path):
    out = tmp_path / "results.jsonl"
    given = ("eval", "--task", f"humaneval:path={path}", "--problems", "1", "--max-new-tokens", "4")
    given += ("--output", str(out))
    code, _, err = run(*given)
    assert code == 2
    assert err.startswith("cactus: humaneval runs programs that a model wrote")
    text, err = succeed(*given, "--allow-code-execution", "--chat")
    assert "0.000" in text
    err = refused("eval", "--rescore", str(out), *given[1:3], "--output", str(tmp_path / "again.jsonl"))
    assert "give --allow-code-execution" in err
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ValueError, match="is not a whole gzip file"):
        parse_task(f"humaneval:path={path}")


INSTRUCTIONS = [
    ("Write about cats without commas.", ["punctuation:no_comma"], [{}]),
    ("Say it in quotes, in lower case.", ["startend:quotation", "change_case:english_lowercase"], [{}, {}]),
    ("At least 5 words, name a cat.", ["length_constraints:number_words", "keywords:existence"],
     [{"relation": "at least", "num_words": 5}, {"keywords": ["cat"]}]),
    ("At most 2 sentences.", ["length_constraints:number_sentences"], [{"relation": "less than", "num_sentences": 3}]),
    ("Highlight 1 part.", ["detectable_format:number_highlighted_sections"], [{"num_highlights": 1}]),
    ("Answer in JSON.", ["detectable_format:json_format"], [{}]),
    ("End with the end.", ["startend:end_checker"], [{"end_phrase": "the end"}]),
    ("Answer in German.", ["language:response_language"], [{"language": "de"}]),
]  # fmt: skip
WRITTEN = [
    "A cat sleeps, and then it eats.\nIt is a good life for a cat. *Truly* good. the end",
    '"the cat sat on the mat and looked at the birds"',
    'Sure! Here it is:\n{"animal": "cat"}',
    "Die Katze schläft den ganzen Tag auf dem Sofa und träumt von Mäusen.",
    "  ",
]


@pytest.fixture
def instructions(tmp_path):
    path = tmp_path / "ifeval.jsonl"
    lines = [
        {"key": 1000 + place, "prompt": prompt, "instruction_id_list": kinds, "kwargs": given}
        for place, (prompt, kinds, given) in enumerate(INSTRUCTIONS)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.mark.slow  # importing the harness takes seconds
@pytest.mark.usefixtures("sentences")
def test_forty_answers_are_judged_as_the_harness_judges_them(instructions):
    seen = set()
    for score in ("strict", "loose"):
        task = parse_task(f"ifeval:path={instructions},score={score}", chat=True)
        task.judge.check()
        import langdetect
        from lm_eval.tasks.ifeval.utils import process_results

        langdetect.DetectorFactory.seed = 0
        documents = [json.loads(line) for line in instructions.read_text().splitlines()]
        for document, problem in zip(documents, task.problems, strict=True):
            theirs = [process_results(document, [text])[f"prompt_level_{score}_acc"] for text in WRITTEN]
            assert [task.is_right(problem, text) for text in WRITTEN] == theirs
            seen |= {(score, *theirs)}
    assert len(seen) > 8, "the answers tell instructions and scores apart"
    groups = [(each.id, each.group) for each in task.problems[:3]]
    assert groups == [("1000", "punctuation"), ("1001", "several"), ("1002", "several")]


def test_what_is_missing_is_said_in_one_line(instructions, monkeypatch):
    import nltk

    task = parse_task(f"ifeval:path={instructions}")
    monkeypatch.setattr(nltk.data, "path", [])
    with pytest.raises(ValueError, match=r"run python -m nltk\.downloader punkt_tab"):
        task.judge.check()
    imported = builtins.__import__

    def importing(name, *rest, **more):
        if name == "langdetect":
            raise ModuleNotFoundError(name, name=name)
        return imported(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", importing)
    with pytest.raises(ValueError, match=r"IFEval is checked by lm-evaluation-harness: run .*ifeval"):
        task.judge.check()


@pytest.mark.slow
@pytest.mark.usefixtures("sentences")
def test_malformed_lines_and_unknown_instructions_are_named(instructions):
    for given, said in (
        ([], "line 1: 'instruction_id_list' and 'kwargs' must be lists of the same length"),
        ([{}], "has no instruction 'a:b'"),
    ):
        instructions.write_text(json.dumps({"prompt": "x", "instruction_id_list": ["a:b"], "kwargs": given}) + "\n")
        with pytest.raises(ValueError, match=said):
            parse_task(f"ifeval:path={instructions}").judge.check()
