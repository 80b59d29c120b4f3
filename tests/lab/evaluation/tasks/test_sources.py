"""Tasks: what is asked, as plain text and as chats, how an answer is read, and errors that name file and line."""

from __future__ import annotations

import json

import pytest
from support.tables import all_of

from cactus_decoding.lab.evaluation.tasks.sources import parse_task
from cactus_decoding.zoo.word_problems import split_of

# in the format of the published files; the stories are ours
GSM8K = [
    {"question": "A tram has 12 seats. Half are free. How many?", "answer": "12/2 = <<12/2=6>>6 seats.\n#### 6"},
    {"question": "A house costs $900 and 400 more. What in all?", "answer": "900+400=<<900+400=1300>>\n#### 1,300"},
]
SUMS = [{"question": f"What is {i} + {i}?", "answer": f"It is {2 * i}.\n#### {2 * i}"} for i in range(6)]
SPEC_BENCH = [
    {"question_id": 81, "category": "writing", "turns": ["Write a note.", "Make it shorter."]},
    {"question_id": 401, "category": "qa", "turns": ["Who?"]},
]
OWN = [{"prompt": "Capital of France?", "answer": "Paris"}, {"prompt": "Of Peru?", "answer": "Lima", "group": "far"}]


@pytest.fixture
def file(tmp_path):
    def write(lines, name="file.jsonl"):
        path = tmp_path / name
        text = [line if isinstance(line, str) else json.dumps(line) for line in lines]
        path.write_text("\n".join(text) + "\n", encoding="utf-8", errors="surrogateescape")
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
    task, chat = (parse_task(f"gsm8k:path={file(GSM8K)}", chat=each) for each in (False, True))
    assert [p.answer for p in task.problems] == ["6", "1300"]
    assert task.problems[0].prompt == "Question: A tram has 12 seats. Half are free. How many?\nAnswer:"
    second = task.problems[1]
    for text, right in (("#### 1300", True), ("It is $1,300.00.", True), ("#### 130", False), ("I do not know", False)):
        assert task.is_right(second, text) is right
    asked = chat.problems[0].prompt
    assert asked.startswith("A tram has 12 seats. Half are free. How many?\n\nReason step by step")
    assert asked.endswith("within \\boxed{}.")
    assert (chat.name, chat.stop, chat.problems[0].answer) == ("gsm8k", (), "6")


def test_spec_bench_asks_all_turns_in_a_chat(file):
    chat, plain = (parse_task(f"spec_bench:path={file(SPEC_BENCH)}", chat=each).problems for each in (True, False))
    assert [each.follow_ups for each in chat] == [("Make it shorter.",), ()]
    asked = [(each.prompt, each.group, each.follow_ups) for each in plain]
    assert asked == [("Write a note.", "writing", ()), ("Who?", "qa", ())]


@all_of("task, lines, problem", [
    ("gsm8k", ['{"question": "q", "answer": "#### 1"}', "{"], "line 2: this is not JSON"),
    ("gsm8k", ['["q"]'], "line 1: there must be an object"),
    ("gsm8k", ['{"question": "q"}'], "line 1: 'answer' is missing"),
    ("gsm8k", ['{"question": "q", "answer": "one"}'], "line 1: the answer must end in '#### ' and a number"),
    ("gsm8k", ["", '{"question": 3, "answer": "#### 1"}'], "line 2: 'question' must be a text, but is 3"),
    ("spec_bench", ['{"question_id": 1, "category": "x", "turns": []}'], "line 1: 'turns' must be a list"),
    ("spec_bench", [SPEC_BENCH[0] | {"turns": ["a", 1]}], r"must be a list of texts, but is \['a', 1\]"),
    ("jsonl", ['{"prompt": " "}'], "line 1: 'prompt' must be a text"),
    ("jsonl", ['{"prompt": "a", "id": 1}', '{"prompt": "b", "id": "1"}'], "two problems with the id '1'"),
    ("jsonl", [""], "has no problems"),
    ("jsonl", ['{"prompt": "a"}', "\udce9"], "line 2: byte 0 is not UTF-8"),
    ("jsonl", ['{"prompt": "a", "answer": "b"}'], "line 1: there is an answer, but it is not said how it is read"),
])  # fmt: skip
def test_malformed_lines_are_named(file, task, lines, problem):
    path = file(lines)
    with pytest.raises(ValueError, match=problem) as error:
        parse_task(f"{task}:path={path}")
    assert str(path) in str(error.value)


def test_an_answer_that_names_no_option_is_refused(file):
    path = file([{"prompt": "a", "answer": "b"}, {"prompt": "c", "answer": 1, "id": "q7"}])
    said = r"line 2: the answer of problem 'q7' must name an option from A to J, such as 'B', 'b' or .*, but is '1'"
    with pytest.raises(ValueError, match=said):
        parse_task(f"jsonl:path={path},extract=letter")
    assert [each.answer for each in parse_task(f"jsonl:path={path},extract=letter", 1).problems] == ["B"]
    assert [each.answer for each in parse_task(f"jsonl:path={path},extract=exact").problems] == ["b", "1"]


@all_of("text, problem", [
    ("riddles", "unknown task 'riddles'.*known are word_problems, gsm8k, humaneval, ifeval, spec_bench, jsonl"),
    ("gsm8k", "lacks path; write for example 'gsm8k:path=gsm8k.jsonl'"),
    ("gsm8k:file=x", "parameters of gsm8k are: path"),
    ("word_problems:split=dev", "split must be one of train, validation, test"),
    ("jsonl:path=x,extract=magic", "extract must be one of"),
    ("jsonl:path=x,extract=regex", "needs a pattern"),
    ("jsonl:path=x,extract=regex,pattern=(", "no regular expression"),
    ("jsonl:path=x,template=no", "template must contain {prompt}"),
    ("gsm8k:path={sums},shots=7", "has 6 problems, but shots are 7"),
    ("gsm8k:path={sums},examples=x", "give shots too"),
    ("gsm8k:path={sums}", "has 6 problems, but 7 are asked for"),
])  # fmt: skip
def test_unknown_tasks_and_parameters_are_named(file, text, problem):
    with pytest.raises(ValueError, match=problem):
        parse_task(text.replace("{sums}", str(file(SUMS))), 7)


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


def test_solved_problems_stand_before_each_question_and_are_not_asked(file):
    path = file(SUMS)
    for chat in (False, True):
        task = parse_task(f"gsm8k:path={path},shots=2", 3, chat=chat)
        assert [each.id for each in task.problems] == ["3", "4", "5"]
        assert task.problems[0].prompt == (
            "Question: What is 0 + 0?\nAnswer: It is 0.\n#### 0\n\n"
            "Question: What is 1 + 1?\nAnswer: It is 2.\n#### 2\n\nQuestion: What is 2 + 2?\nAnswer:"
        )
        assert (task.name, task.stop) == ("gsm8k:shots=2", ("\nQuestion:",))
    others = parse_task(f"gsm8k:path={path},shots=1,examples={file(SUMS[::-1], 'train.jsonl')}")
    assert len(others.problems) == 6
    assert others.problems[0].prompt.startswith("Question: What is 5 + 5?\nAnswer: It is 10.\n#### 10\n\nQuestion:")
