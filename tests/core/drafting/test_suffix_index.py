"""The index that finds where a text's end stood before equals a plain search."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cactus_decoding.core.drafting.suffix_index import END, Match, SuffixIndex

TEXTS = st.lists(st.integers(0, 2), min_size=1, max_size=40)


def ends(text: list[int], other: list[int], most: int) -> list[int]:
    """Return the places of another text, or of the text before its end, behind so many of its last tokens."""
    last = len(other) - (other is text)
    return [end for end in range(last, most - 1, -1) if text[len(text) - most :] == other[end - most : end]]


def found_by_search(text: list[int], limit: int, *others: list[int], voting: int = 5) -> Match:
    """Return what most of the places agree on that follow the longest end of a text, by looking at all of them."""
    for size in range(min(voting, len(text)), 0, -1):
        places = [(other, end) for other in (text, *others) for end in ends(text, other, size)]
        if places:
            break
    else:
        return Match(0, [], [])
    whole = max(n for n in range(1, len(text) + 1) for other in (text, *others) if ends(text, other, n))
    agreed, support = [], []
    for i in range(limit):
        ahead = [[*other, *(agreed if other is text else [])][end + i] for other, end in places]
        token = max(dict.fromkeys(ahead), key=Counter(ahead).get)
        if token == END:
            break
        agreed, support = [*agreed, token], [*support, ahead.count(token) / len(ahead) * (whole + i)]
        places = [place for place, each in zip(places, ahead, strict=True) if each == token]
    return Match(whole, agreed, support)


@given(TEXTS, st.lists(TEXTS, max_size=3), st.integers(1, 6))
def test_and_in_other_texts_too(text: list[int], others: list[list[int]], limit: int) -> None:
    ended = [[*other, END] for other in others]
    found = SuffixIndex(text).longest(limit, *map(SuffixIndex, ended))
    assert found == found_by_search(text, limit, *ended)
    assert END not in found.token_ids


def test_a_search_that_asked_a_shorter_end_would_be_noticed() -> None:
    text = [1, 2, 3, 9, 2, 3, 8, 2, 3, 8, 1, 2, 3]
    assert SuffixIndex(text).longest(1) == found_by_search(text, 1) == Match(3, [9], [3.0])
    assert found_by_search(text, 1, voting=2).token_ids == [8]


@given(TEXTS, st.integers(1, 4), st.integers(1, 5), st.integers(0, 4))
def test_all_continuations_are_those_of_a_search(text: list[int], limit: int, shortest: int, more: int) -> None:
    longest = shortest + more
    sizes = {
        end: max(size for size in range(end + 1) if text[end - size : end] == text[len(text) - size :])
        for end in range(1, len(text))
    }
    found = sorted(((min(size, longest), end) for end, size in sizes.items() if size >= shortest), reverse=True)
    expected = [text[end : end + limit] for _, end in found]
    assert [*SuffixIndex(text).continuations(limit, longest, shortest)] == expected


@given(TEXTS, TEXTS, st.integers(1, 40))
def test_a_text_that_grows_or_changes_is_followed(text: list[int], other: list[int], cut: int) -> None:
    index = SuffixIndex()
    for known in (text[:cut], text, other, [*other, *text]):
        index.follow(known)
    anew = SuffixIndex([*other, *text])
    assert (index.token_ids, index._before) == (anew.token_ids, anew._before)
    assert {token: place for token, place in index._last.items() if place >= 0} == anew._last


class Struck(list[int]):
    """Tokens of which only some can be read."""

    def __iter__(self) -> Iterator[int]:
        yield from self[:3]
        raise KeyboardInterrupt


def test_what_was_interrupted_leaves_nothing_behind() -> None:
    index, text = SuffixIndex([1, 2, 3, 1, 2]), [1, 2, 3, 1, 2, 3, 4, 1]
    with pytest.raises(KeyboardInterrupt):
        index.add(Struck([9, 8, 7, 6]))
    index.follow(text)
    assert vars(index) == vars(SuffixIndex(text))
    index._before.pop()  # as amid taking tokens back
    index.add([2])
    assert vars(index) == vars(SuffixIndex([*text, 2]))


def test_what_is_added_is_all_that_is_worked_on(monkeypatch: pytest.MonkeyPatch) -> None:
    added, whole = [], SuffixIndex.add
    monkeypatch.setattr(SuffixIndex, "add", lambda self, given: (added.append(len(given)), whole(self, given)))
    index = SuffixIndex(range(10_000))
    for count in (3, 1):
        index.follow([*index.token_ids, *[7] * count])
    index.follow([*index.token_ids[:-2], 8])
    assert added == [10_000, 3, 1, 1]
