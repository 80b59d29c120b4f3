"""How answers are read from texts."""

from __future__ import annotations

import pytest

from cactus_decoding.lab.evaluation.tasks.task import EXTRACTORS, extractor


def test_extractors_find_nothing_in_nothing():
    assert [extract("") for extract in EXTRACTORS.values()] == [None] * len(EXTRACTORS)


@pytest.mark.parametrize(
    ("text", "number"),
    [("-5 and 7", "7"), ("1,234,567.50!", "1234567.5"), ("12,34", "34"), (".5", "0.5"), ("in 1999.", "1999")],
)
def test_last_number(text, number):
    assert extractor("last_number")(text) == number
