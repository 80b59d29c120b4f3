"""Tables of cases in one test try every case, and name the one that fails."""

from __future__ import annotations

import pytest
from support.rules_under_test import ORDINARY, SPELLINGS, every_rule
from support.tables import all_of, groups_of


@pytest.fixture
def tried() -> list[tuple[int, str]]:
    return []


@all_of("number, word", [(1, "a"), pytest.param(2, "b", id="two"), (3, "c")])
def note(tried: list, number: int, word: str) -> None:
    tried.append((number, word))
    assert number < 3, "three"


def test_every_case_is_tried_and_the_one_that_fails_is_named(tried: list) -> None:
    with pytest.raises(AssertionError, match="three") as caught:
        note(tried=tried)
    assert tried == [(1, "a"), (2, "b"), (3, "c")]
    assert caught.value.__notes__ == ["in the case {'number': 3, 'word': 'c'}"]


@groups_of("word", {"short": ["a", "b"], "long": ["aaa"]})
@all_of("number", [1, 2])
def test_tables_within_groups_are_tried_with_the_fixtures_of_the_test(tried: list, word: str, number: int) -> None:
    tried.append((number, word))
    assert len(word) in (1, 3)
    assert len(tried) <= 4


def test_a_table_of_what_the_test_does_not_take_is_an_error() -> None:
    with pytest.raises(AssertionError, match="takes no"):
        all_of("numbre", [1])(note)


def test_every_knob_is_in_one_group_and_one_of_each_class_is_fast() -> None:
    @every_rule()
    def test(spelling: str) -> None: ...

    groups = test.pytestmark[0].args[1]
    assert sorted(text for group in groups for text in group.values[0]) == sorted(SPELLINGS)
    assert {text for group in groups if not group.marks for text in group.values[0]} == ORDINARY
