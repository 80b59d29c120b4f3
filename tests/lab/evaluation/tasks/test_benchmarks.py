"""Tasks of published files, as plain text and as chats."""

from __future__ import annotations

import json

import pytest

from cactus_decoding.lab.evaluation.tasks.sources import parse_task
from cactus_decoding.lab.evaluation.tasks.task import EXTRACTORS, extractor, final_number

GSM8K = [{"question": f"What is {i} + {i}?", "answer": f"It is {2 * i}.\n#### {2 * i}"} for i in range(6)]
SPEC_BENCH = [
    {"question_id": 81, "category": "writing", "turns": ["Write a note.", "Make it shorter."]},
    {"question_id": 401, "category": "qa", "turns": ["Who?"]},
]


@pytest.fixture
def file(tmp_path):
    def write(lines, name="file.jsonl"):
        (tmp_path / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
        return tmp_path / name

    return write


def test_gsm8k_asks_a_chat_for_a_box(file):
    task = parse_task(f"gsm8k:path={file(GSM8K)}", 2, chat=True)
    assert task.problems[1].prompt.startswith("What is 1 + 1?\n\nReason step by step")
    assert task.problems[1].prompt.endswith("within \\boxed{}.")
    assert (task.name, task.stop, task.problems[1].answer) == ("gsm8k", (), "2")


def test_solved_problems_stand_before_each_question_and_are_not_asked(file):
    path = file(GSM8K)
    for chat in (False, True):
        task = parse_task(f"gsm8k:path={path},shots=2", 3, chat=chat)
        assert [each.id for each in task.problems] == ["3", "4", "5"]
        assert task.problems[0].prompt == (
            "Question: What is 0 + 0?\nAnswer: It is 0.\n#### 0\n\n"
            "Question: What is 1 + 1?\nAnswer: It is 2.\n#### 2\n\nQuestion: What is 2 + 2?\nAnswer:"
        )
        assert (task.name, task.stop) == ("gsm8k:shots=2", ("\nQuestion:",))
    others = parse_task(f"gsm8k:path={path},shots=1,examples={file(GSM8K[::-1], 'train.jsonl')}")
    assert len(others.problems) == 6
    assert others.problems[0].prompt.startswith(
        "Question: What is 5 + 5?\nAnswer: It is 10.\n#### 10\n\nQuestion: What"
    )
    for wrong, said in (("shots=7", "has 6 problems, but shots are 7"), ("examples=x", "give shots too")):
        with pytest.raises(ValueError, match=said):
            parse_task(f"gsm8k:path={path},{wrong}")


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (r"so \boxed{18} eggs. Check: 9 * 2", "18"),
        (r"\(\boxed{\$1,250.50}\)", "1250.5"),
        (r"\boxed{3} no: $$\boxed{-4\text{ m}}$$ 7", "-4"),
        (r"\boxed{x} is 5", "5"),
        ("#### 12\nQuestion: 5 + 6", "12"),
        ("The answer is 7.", "7"),
        ("**Answer:** $25 per day.", "25"),
        ("none", None),
    ],
)
def test_the_answer_is_in_a_box_behind_hashes_or_last(text, number):
    assert final_number(text) == number


def test_spec_bench_asks_all_turns_in_a_chat(file):
    path = file(SPEC_BENCH)
    assert [each.follow_ups for each in parse_task(f"spec_bench:path={path}", chat=True).problems] == [
        ("Make it shorter.",),
        (),
    ]
    plain = parse_task(f"spec_bench:path={path}")
    assert [(each.prompt, each.group, each.follow_ups) for each in plain.problems] == [
        ("Write a note.", "writing", ()),
        ("Who?", "qa", ()),
    ]
    with pytest.raises(ValueError, match="'turns' must be a list of texts, but is \\['a', 1\\]"):
        parse_task(f"spec_bench:path={file([SPEC_BENCH[0] | {'turns': ['a', 1]}])}")


def test_extractors_find_nothing_in_nothing():
    assert [extract("") for extract in EXTRACTORS.values()] == [None] * len(EXTRACTORS)


@pytest.mark.parametrize(
    ("text", "number"),
    [("-5 and 7", "7"), ("1,234,567.50!", "1234567.5"), ("12,34", "34"), (".5", "0.5"), ("in 1999.", "1999")],
)
def test_last_number(text, number):
    assert extractor("last_number")(text) == number
