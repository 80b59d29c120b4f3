"""The study of schemas: its tables, and its thirty schemas with the bundled pair."""

from __future__ import annotations

import json

import pytest

from cactus_decoding import load_pair
from studies.structured_answers.answers import ask
from studies.structured_answers.schemas import CASES
from studies.structured_answers.suite import examine, spellings


def test_values_are_written_with_their_properties_in_every_order():
    assert [*spellings({"a": [1, "é"], "b": None})] == ['{"a": [1, "é"], "b": null}', '{"b": null, "a": [1, "é"]}']


def test_a_schema_is_examined_by_its_values_and_by_answers():
    tests = [
        {"data": {"b": 1, "a": 2}, "valid": True, "description": "another order"},
        {"data": {"a": 1.0}, "valid": True, "description": "written otherwise"},
        {"data": {"a": "x"}, "valid": False, "description": "a text"},
        {"data": {"a": 1}, "valid": False, "description": "called invalid by mistake"},
    ]
    counts, notes = examine({"type": "object", "properties": {"a": {"type": "integer"}, "b": {}}}, tests)
    assert counts["generated"] > 0
    assert {name: counts[name] for name in counts if name != "generated"} == {
        "valid accepted": 1, "valid rejected": 1, "invalid excluded": 1, "invalid accepted": 1,
    }  # fmt: skip
    assert [note["says"] for note in notes] == ["written otherwise", "called invalid by mistake"]
    counts, notes = examine({"uniqueItems": True}, tests)
    assert (counts, "uniqueItems at # is not supported" in notes[0]["refused"]) == ({"refused": 4}, True)


@pytest.mark.slow
def test_answers_of_the_bundled_pair_to_every_schema_are_valid():
    """A model that knows no JSON, at temperature 1.5, with and without proposals."""
    pair, ended = load_pair(), 0
    for number, case in enumerate(CASES):
        found = ask(pair, case, 2, proposals=4 * (number % 2))
        assert (found["wrong"], found["valid"] + found["cut"]) == ([], 2), json.dumps(found)
        ended += found["valid"]
    assert ended > len(CASES)
