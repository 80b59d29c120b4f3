"""Answers are read as docs/answers.md says, row by row, and letters whatever words stand around them."""

from __future__ import annotations

import json
import re
import sys
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.code_blocks import ROOT
from support.tables import all_of

from cactus_decoding.lab.evaluation.tasks import reading
from cactus_decoding.lab.evaluation.tasks.reading import (
    EXTRACTORS,
    canonical_number,
    final_number,
    last_box,
    letter,
    reference,
)
from cactus_decoding.lab.evaluation.tasks.sources import parse_task

PAGE = (ROOT / "docs" / "answers.md").read_text()


def rows(name: str) -> list[list[str]]:
    """Return the cells of a table of the page, without the marks of code; what is no code is a word of ours."""
    _, _, rest = PAGE.partition(f"<!-- begin: {name} -->")
    lines = rest.partition("<!-- end")[0].strip().splitlines()[2:]
    return [[cell.strip().strip("`") for cell in line.strip("|").split(" | ")] for line in lines]


NONE = "none"
READ = [(name, *row) for name in ("final_number", "letter") for row in rows(name)]


def test_the_page_lists_more_than_a_hundred_texts():
    listed = len(READ) + len(rows("math")) + len(rows("right answers"))
    assert listed > 100
    assert f"lists {listed} texts" in PAGE


@all_of("row", READ)
def test_texts_are_read_as_the_page_says(row):
    name, text, wanted = row
    assert EXTRACTORS[name](text) == (None if wanted == NONE else wanted)


def test_expressions_are_judged_as_the_page_says(tmp_path):
    path, listed = tmp_path / "problems.jsonl", rows("math")
    path.write_text("".join(json.dumps({"prompt": "?", "answer": answer}) + "\n" for answer, _, _ in listed))
    task = parse_task(f"jsonl:path={path},extract=math")
    assert task.judge.check() is None
    judged = [task.is_right(problem, text) for problem, (_, text, _) in zip(task.problems, listed, strict=True)]
    assert judged == [said == "right" for _, _, said in listed]


@all_of("row", rows("right answers"))
def test_right_answers_are_read_as_the_page_says(row):
    name, answer, wanted = row
    assert reference(EXTRACTORS[name], answer) == (None if wanted == "refused" else wanted)


BARE = {
    "boxed": [("1,250.50", r"\boxed{1,250.50}"), ("20.0", r"\boxed{20}"), (r"\frac{1}{2}", r"\boxed{1/2}")],
    "hashes": [("1,250.50", "#### 1,250.50"), ("20.0", "#### 20"), ("$18", "#### $18")],
    "final_number": [(r"\frac{1}{2}", r"\boxed{\frac{1}{2}}"), ("2^{10}", r"\boxed{1024}")],
    "letter": [("b", "The answer is B")],
}


@all_of("name, answer, text", [(name, *pair) for name, pairs in BARE.items() for pair in pairs])
def test_an_answer_that_is_given_bare_is_met_by_the_same_answer(tmp_path, name, answer, text):
    path = tmp_path / "problems.jsonl"
    path.write_text(json.dumps({"prompt": "?", "answer": answer}) + "\n")
    task = parse_task(f"jsonl:path={path},extract={name}")
    assert task.is_right(task.problems[0], text)
    assert not task.is_right(task.problems[0], r"\boxed{2}, or #### 2")
    read = EXTRACTORS[name]
    assert (read(answer) or answer) != read(text), "read as a text is, it would not be met"


# words in which no option stands alone, and the two words that are letters: an article and a pronoun, before others
TALK = st.lists(
    st.sampled_from([
        "because", "it", "works", "Bob", "Able", "e.g.", "(see", "above)", "vitamin", "I'm", "12", "Ω", "A good reason",
        "I said so", "A man can", "I think that", "as I see it,", "what A teacher says",
    ]), max_size=8,
).map(" ".join)  # fmt: skip
FORMS = st.sampled_from([
    "The answer is {}.", "Answer: {}\n", "**Answer:** ({})", "the correct choice is {},", r"\boxed{{{}}}",
    "The answer is **{}**", "The correct answer is option {}.", "The answer is choice {}.",
    "The answer is **Option {}**.", "Answer: ${}$.", r"Answer: \({}\).", r"Answer: $\text{{{}}}$.",
    "The answer should be {};", "answer: the letter ({})", "The answer is therefore {}.",
    r"\boxed{{\text{{Option {}}}}}", r"\boxed{{\textbf{{({})}}}}",
])  # fmt: skip
REJECTED = st.sampled_from(["", "A is wrong.", "Option {} is incorrect.", "{} is not.", "({}) is close, but no."])


@given(TALK, FORMS, st.sampled_from("ABCDEFGHIJ"), TALK, REJECTED, st.sampled_from("ABCDEFGHIJ"))
def test_a_stated_letter_is_read_whatever_is_said_around_it(before, form, wanted, after, rejected, other):
    assert letter(f"{before} {form.format(wanted)} {after} {rejected.format(other)}") == wanted


def test_a_letter_stated_by_fewer_words_would_be_the_rejected_one(monkeypatch):
    """The pattern that there was before, to which "answer is option B" states nothing."""
    text = "The correct answer is option B. Option A is incorrect."
    assert letter(text) == "B"
    narrow = rf"(?i:\banswer)[\s*]*(?i:is|:)[\s*(]*{reading._OPTION}"
    monkeypatch.setattr(reading, "_STATED", re.compile(narrow))
    assert letter(text) == "A"


def test_marks_without_end_are_passed_over_in_time():
    for begin in ("", "answer is", "answer is option", r"\boxed{"):
        assert letter(begin + " *" * 50_000) is None


@given(st.sampled_from("ABCDEFGHIJ"), st.sampled_from([". ", ") ", ": ", "\n"]), TALK)
def test_a_letter_that_begins_the_text_is_read_whatever_follows(wanted, mark, after):
    assert letter(wanted + mark + after) == wanted


@given(TALK)
def test_talk_holds_no_letter(talk):
    assert letter(talk) is None


def test_the_last_capital_alone_would_be_read_wrongly():
    """The rule that there was before, with which these properties do not hold."""

    def last_capital(text: str) -> str:
        return re.findall(r"\b([A-J])\b", text)[-1]

    assert last_capital("The answer is B because I said so") == "I" != letter("The answer is B because I said so")
    assert last_capital("B. A good choice") == "A" != letter("B. A good choice")


@given(st.integers(-(10**12), 10**12), st.sampled_from(["", "$", "€"]), st.sampled_from(["-", "\u2212"]), st.booleans())
def test_a_number_is_read_in_whatever_way_it_is_written(value, currency, minus, boxed):
    sign, digits = minus if value < 0 else "", f"{abs(value):,}"
    for written in (f"{sign}{currency}{digits}", f"{currency}{sign}{digits}"):
        text = (rf"\boxed{{{written}}}" if boxed else f"It is {written}.").replace("$", r"\$" if boxed else "$")
        assert final_number(text) == str(value), text


@given(st.integers(-(10**6), 10**6), st.integers(1, 10**4))
def test_a_fraction_has_one_spelling(above, below):
    spelled = canonical_number(f"{above}/{below}")
    assert canonical_number(spelled) == spelled
    assert spelled == canonical_number(f"{3 * above}/{3 * below}")
    if "/" not in spelled:
        assert Decimal(spelled) * below == above


@given(st.integers(0, 10**6), st.integers(2, 10**4), st.data(), st.booleans())
def test_a_fraction_below_1_belongs_to_the_integer_before_it(whole, below, data, boxed):
    above = data.draw(st.integers(1, below - 1))
    wanted = canonical_number(f"{whole * below + above}/{below}")
    for sign in ("", "-"):
        text = f"{sign}{whole} {above}/{below}"
        assert final_number(rf"\boxed{{{text}}}" if boxed else f"It is {text}.") == canonical_number(text)
        assert canonical_number(text) == sign + wanted
    assert wanted != canonical_number(f"{above}/{below}") or not whole, "the fraction alone is another number"
    assert canonical_number(f"{whole} {below}/{above}") is None


@given(st.text(alphabet="{}\\boxed{4 ", max_size=40))
def test_a_box_is_closed_and_not_empty(text):
    found = last_box(text)
    assert found is None or (found and found.count("{") == found.count("}"))


def test_without_math_verify_a_command_says_what_to_install(monkeypatch, tmp_path):
    path = tmp_path / "problems.jsonl"
    path.write_text(json.dumps({"prompt": "?", "answer": "1"}) + "\n")
    monkeypatch.setitem(sys.modules, "math_verify", None)
    for extract in ("math", "boxed", "final_number"):
        task = parse_task(f"jsonl:path={path},extract={extract}")
        with pytest.raises(ValueError, match=r"read by math-verify: run .*\[eval\]"):
            task.check(None, None)
    assert parse_task(f"jsonl:path={path},extract=last_number").is_right(task.problems[0], "It is 1.")
