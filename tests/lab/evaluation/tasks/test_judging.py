"""Whatever a model writes has an answer, or none: no text ends an evaluation, or keeps it from going on."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cactus_decoding.lab.evaluation.engines.engine import Problem
from cactus_decoding.lab.evaluation.tasks import judging
from cactus_decoding.lab.evaluation.tasks.reading import (
    EXTRACTORS,
    boxed,
    canonical_number,
    extractor,
    final_number,
    last_number,
)
from cactus_decoding.lab.evaluation.tasks.sources import parse_task
from cactus_decoding.zoo.word_problems import extract_answer
from cactus_decoding.zoo.word_problems.generator import unlike_stories

LONG = (
    "9" * 5_000,
    "1e9999999",
    "-1E-9999999",
    "1e" + "9" * 30,
    "1" + ",000" * 2_000,
    "." + "0" * 9_999 + "1",
    "#" * 9_999,
)
"""Texts that are short to write and long to work out, or longer than Python reads integers."""
PIECES = (
    *LONG, "#### ", "\\boxed{", "}", "{", "$", "-", ".", ",", "12", "1,250.50", "\u0661\u0662", "\u00b2", "NaN",
    "sNaN1", "inf", "1_0", "0x1F", "A", "\n", "\r", "\u2028", "\x1c", "\x85", "\0", " ", "\ud83d", "\U0001f600",
    "[" * 2_000, '{"a":' * 2_000, "```", "*", "text",
)  # fmt: skip
TEXTS = st.one_of(st.text(), st.lists(st.sampled_from(PIECES), max_size=12).map("".join))


@given(TEXTS)
@settings(max_examples=300)
def test_every_extractor_takes_every_text(text):
    for name, extract in EXTRACTORS.items():
        found = extract(text)
        assert found is None or (found and isinstance(found, str)), name
        if found is not None and extract in (final_number, last_number):
            assert canonical_number(found) == found, "a canonical spelling stands for itself"
    assert extract_answer(text) is None or abs(extract_answer(text)) < 10**100
    assert isinstance(unlike_stories(text), str)


@given(st.decimals(allow_nan=False, allow_infinity=False), st.integers(0, 30))
def test_one_number_has_one_spelling_and_another_has_another(value, zeros):
    sign, digits, exponent = value.as_tuple()
    same, other = (
        Decimal((sign, (*digits, *[0] * zeros), exponent - zeros)),
        Decimal((sign, (*digits, 1), exponent - 1)),
    )
    spelled = canonical_number(str(value))
    assert Decimal(spelled) == value
    assert spelled == canonical_number(str(same)) != canonical_number(str(other))


def test_long_numbers_are_told_apart_and_hashes_and_boxes_hold_them():
    nines = "9" * 5_000
    assert canonical_number(nines) == nines != canonical_number(nines[:-1] + "8")
    assert canonical_number("1" + "0" * 5_000) == canonical_number("1e5000") == "1E+5000" != canonical_number("1e5001")
    assert final_number(f"#### {nines}") == boxed(rf"\boxed{{{nines}}}") == nines
    assert (boxed(r"\boxed{1e9999999}"), boxed(r"\boxed{-0.0}"), boxed(r"\boxed{sNaN}")) == ("1E+9999999", "0", "sNaN")
    assert (extract_answer(f"#### {nines}"), extract_answer("#### 1,234")) == (None, 1234)
    assert unlike_stories(f"Tom has {nines} pears and {nines}1 more. How many does he have?").endswith("5001 digits")


def test_a_pattern_that_takes_too_long_finds_nothing_and_the_next_text_is_searched(monkeypatch):
    find = extractor("regex", r"is ((?:a+)+)\.")
    assert find("It is aa. No: it is aaa.") == "aaa"
    assert extractor("regex", r"\d+")("1 and 22") == "22"
    assert extractor("regex", r"x|(y)?z")("x") is None
    monkeypatch.setattr(judging, "JUDGING_SECONDS", 0.5)
    assert find("it is " + "a" * 60) is None
    assert find("it is a.") == "a"


def test_an_expression_that_takes_too_long_is_no_number_and_the_next_one_is_worked_out(monkeypatch):
    assert final_number(r"\boxed{\frac{1}{4}}") == "0.25"
    monkeypatch.setattr(judging, "MATH_SECONDS", 0.5)
    assert judging.same_value("9", r"\boxed{9^{9^{9^9}}}") is False
    monkeypatch.undo()
    assert final_number(r"\boxed{\frac{1}{5}}") == "0.2"


@given(TEXTS)
@settings(max_examples=50)
def test_every_text_can_be_searched(text):
    assert extractor("regex", "(?s)^(.*)$")(text) == (text or None)


def test_what_a_program_may_be_is_judged(tmp_path):
    path = tmp_path / "problems.jsonl"
    given = {"task_id": "0", "prompt": "def f():\n", "entry_point": "f", "test": "def check(f):\n    assert f() == 1\n"}
    path.write_text(json.dumps(given) + "\n")
    task = parse_task(f"humaneval:path={path}")
    texts = (
        "    return 1\n",
        "    return " + "(" * 5_000,
        "\ud83d",
        "    return \0",
        "    return " + "9" * 5_000,
    )
    assert [task.is_right(task.problems[0], text) for text in texts] == [True, *[False] * 4]


IFEVAL = {
    "detectable_format:json_format": {}, "detectable_content:number_placeholders": {"num_placeholders": 1},
    "language:response_language": {"language": "de"}, "length_constraints:number_sentences": {
        "num_sentences": 3, "relation": "less than"}, "change_case:capital_word_frequency": {
        "capital_frequency": 1, "capital_relation": "less than"}, "keywords:letter_frequency": {
        "letter": "a", "let_frequency": 1, "let_relation": "less than"}, "detectable_format:title": {},
}  # fmt: skip


@pytest.mark.slow  # importing lm-evaluation-harness takes seconds
@pytest.mark.usefixtures("sentences")
def test_every_text_is_judged_by_every_instruction(tmp_path, monkeypatch):
    path = tmp_path / "ifeval.jsonl"
    lines = [{"key": kind, "prompt": "x", "instruction_id_list": [kind], "kwargs": [IFEVAL[kind]]} for kind in IFEVAL]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    task = parse_task(f"ifeval:path={path},score=loose")
    task.judge.check()
    problems: dict[str, Problem] = {each.id: each for each in task.problems}

    @given(TEXTS)
    @settings(max_examples=10)
    def judged(text):
        for problem in task.problems:
            assert task.is_right(problem, text) in (True, False)

    judged()
    json_format = problems["detectable_format:json_format"]
    nested = "[" * 100_000 + "]" * 100_000
    assert [task.is_right(json_format, text) for text in ('{"a": 1}', nested, "9" * 5_000)] == [True, False, False]
    placeholders = problems["detectable_content:number_placeholders"]
    with monkeypatch.context() as patch:
        patch.setattr(judging, "JUDGING_SECONDS", 2.0)
        assert not task.is_right(placeholders, "[" * 10**6), "a time that grows with the square"
    assert task.is_right(placeholders, "[name]")
    path.write_text(json.dumps(lines[0] | {"kwargs": [{"frob": 1}]}) + "\n")
    with pytest.raises(ValueError, match=r"problem detectable_format:json_format: TypeError: .*frob"):
        parse_task(f"ifeval:path={path}").judge.check()
