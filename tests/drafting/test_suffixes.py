"""The index that finds where a text's end stood before equals a plain search."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cactus_decoding.drafting.suffixes import Match, SuffixIndex

TEXTS = st.lists(st.integers(0, 2), min_size=1, max_size=40)


def found_by_search(text: list[int], limit: int) -> Match:
    """Return what follows the best earlier place of the text's end, over and over."""
    best = Match(0, [])
    for end in range(1, len(text)):
        size = 0
        while size < end and text[end - 1 - size] == text[-1 - size]:
            size += 1
        if size and size >= min(best.size, 5):  # among matches of five tokens or more the latest counts
            best = Match(size, (text[end:] * limit)[:limit])
    return best


@given(TEXTS, st.integers(1, 6))
def test_it_finds_what_a_search_finds(text: list[int], limit: int) -> None:
    index = SuffixIndex()
    index.follow(text)
    assert index.longest(limit) == found_by_search(text, limit)


@given(TEXTS, TEXTS, st.integers(1, 40))
def test_a_text_that_grows_or_changes_is_followed(text: list[int], other: list[int], cut: int) -> None:
    index, whole = SuffixIndex(), SuffixIndex()
    for known in (text[:cut], text, other, [*other, *text]):
        index.follow(known)
    whole.follow([*other, *text])
    assert index.longest(4) == whole.longest(4)
    assert index.longest(4) == found_by_search([*other, *text], 4)


def test_a_run_goes_on_beyond_the_end() -> None:
    index = SuffixIndex()
    index.follow([1, *[9] * 8])
    assert index.longest(4).token_ids == [9] * 4


def test_an_index_that_took_a_new_text_for_a_longer_one_would_be_noticed() -> None:
    index = SuffixIndex()
    index.follow([1, 2, 3, 1, 2])
    index.follow([1, 2, 4, 1, 2])
    assert index.longest(1) == Match(2, [4])
