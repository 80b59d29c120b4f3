"""Tasks: what is asked, how an answer is read, and errors that name the file and the line."""

from __future__ import annotations

import json

import pytest

from cactus_decoding.lab.evaluation.tasks.sources import parse_task
from cactus_decoding.zoo.word_problems import split_of

# in the format of the published file; the stories are ours
GSM8K = [
    {"question": "A tram has 12 seats. Half are free. How many?", "answer": "12/2 = <<12/2=6>>6 seats.\n#### 6"},
    {"question": "A house costs $900 and 400 more. What in all?", "answer": "900+400=<<900+400=1300>>\n#### 1,300"},
]
OWN = [{"prompt": "Capital of France?", "answer": "Paris"}, {"prompt": "Of Peru?", "answer": "Lima", "group": "far"}]


@pytest.fixture
def file(tmp_path):
    def write(lines, name="file.jsonl"):
        path = tmp_path / name
        text = [line if isinstance(line, str) else json.dumps(line) for line in lines]
        path.write_text("\n".join(text) + "\n")
        return path

    return write


def test_word_problems_are_held_out_and_grouped_by_steps():
    task = parse_task("word_problems", 40)
    assert len(task.problems) == 40
    assert all(split_of(p.prompt.removeprefix("Question: ").removesuffix("\nAnswer:")) == "test" for p in task.problems)
    assert {p.group for p in task.problems} <= {f"{n} steps" for n in range(2, 7)}
    first = task.problems[0]
    assert task.is_right(first, f"so\n#### {first.answer}")
    assert not task.is_right(first, f"so {first.answer}")
    tuning = parse_task("word_problems:split=validation,seed=3", 5)
    assert tuning.name == "word_problems:split=validation,seed=3"
    assert tuning.digest_of(5) != task.digest_of(5)


def test_gsm8k_from_its_published_file(file):
    task = parse_task(f"gsm8k:path={file(GSM8K)}")
    assert [p.answer for p in task.problems] == ["6", "1300"]
    assert task.problems[0].prompt == "Question: A tram has 12 seats. Half are free. How many?\nAnswer:"
    second = task.problems[1]
    for text, right in (("#### 1300", True), ("It is $1,300.00.", True), ("#### 130", False), ("I do not know", False)):
        assert task.is_right(second, text) is right


def test_any_file_with_a_named_extractor_or_a_pattern(file):
    path = file([*OWN, "", {"prompt": "1 + 1?", "answer": 2, "id": "sum"}])
    task = parse_task(rf"jsonl:path={path},extract=first_line,name=towns,template=Q: {{prompt}}\nA:,stop=\nQ")
    assert task.name == "jsonl:towns"
    assert task.stop == ("\nQ",)
    assert [(p.id, p.prompt, p.answer, p.group) for p in task.problems] == [
        ("1", "Q: Capital of France?\nA:", "Paris", ""),
        ("2", "Q: Of Peru?\nA:", "Lima", "far"),
        ("sum", "Q: 1 + 1?\nA:", "2", ""),
    ]
    assert task.is_right(task.problems[0], "\n Paris\nbecause")
    pattern = parse_task(rf"jsonl:path={path},extract=regex,pattern=is (\w+)")
    assert pattern.is_right(pattern.problems[1], "It is Cuzco, no: it is Lima.")
    assert not pattern.is_right(pattern.problems[1], "Lima")
    assert parse_task(f"jsonl:path={path},extract=none").is_right(task.problems[0], "Paris") is None
    with pytest.raises(ValueError, match="line 1: there is an answer, but it is not said how it is read"):
        parse_task(f"jsonl:path={path}")


@pytest.mark.parametrize(
    ("task", "lines", "problem"),
    [
        ("gsm8k", ['{"question": "q", "answer": "#### 1"}', "{"], "line 2: this is not JSON"),
        ("gsm8k", ['["q"]'], "line 1: there must be an object"),
        ("gsm8k", ['{"question": "q"}'], "line 1: 'answer' is missing"),
        ("gsm8k", ['{"question": "q", "answer": "one"}'], "line 1: the answer must end in '#### ' and a number"),
        ("gsm8k", ["", '{"question": 3, "answer": "#### 1"}'], "line 2: 'question' must be a text, but is 3"),
        ("spec_bench", ['{"question_id": 1, "category": "x", "turns": []}'], "line 1: 'turns' must be a list"),
        ("jsonl", ['{"prompt": " "}'], "line 1: 'prompt' must be a text"),
        ("jsonl", ['{"prompt": "a", "id": 1}', '{"prompt": "b", "id": "1"}'], "two problems with the id '1'"),
        ("jsonl", [""], "has no problems"),
    ],
)
def test_malformed_lines_are_named(file, task, lines, problem):
    path = file(lines)
    with pytest.raises(ValueError, match=problem) as error:
        parse_task(f"{task}:path={path}")
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("riddles", "unknown task 'riddles'.*known are word_problems, gsm8k, humaneval, ifeval, spec_bench, jsonl"),
        ("gsm8k", "lacks path; write for example 'gsm8k:path=gsm8k.jsonl'"),
        ("gsm8k:file=x", "parameters of gsm8k are: path"),
        ("word_problems:split=dev", "split must be one of train, validation, test"),
        ("jsonl:path=x,extract=magic", "extract must be one of"),
        ("jsonl:path=x,extract=regex", "needs a pattern"),
        ("jsonl:path=x,extract=regex,pattern=(", "no regular expression"),
        ("jsonl:path=x,template=no", "template must contain {prompt}"),
    ],
)
def test_unknown_tasks_and_parameters_are_named(text, problem):
    with pytest.raises(ValueError, match=problem):
        parse_task(text)


def test_bytes_that_are_no_text_are_named(tmp_path):
    path = tmp_path / "latin.jsonl"
    path.write_bytes(b'{"prompt": "a"}\n{"prompt": "\xe9"}\n')
    with pytest.raises(ValueError, match="line 2: byte 12 is not UTF-8"):
        parse_task(f"jsonl:path={path}")


def test_asking_for_more_than_there_is(file):
    with pytest.raises(ValueError, match="has 2 problems, but 3 are asked for"):
        parse_task(f"gsm8k:path={file(GSM8K)}", 3)
