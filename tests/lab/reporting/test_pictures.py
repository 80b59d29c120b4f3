"""What pictures share."""

from __future__ import annotations

import re

from cactus_decoding.lab.reporting.pictures import with_equal_ids


def test_a_picture_is_the_same_where_the_last_digit_of_a_place_differs() -> None:
    def drawn(clip: str, marker: str, line: str = "M 0 1.5") -> str:
        path = f'<path id="{marker}" d="{line}"/><use xlink:href="#{marker}"/>'
        return f'{path}<g clip-path="url(#{clip})"/><clipPath id="{clip}"/>'

    one, again = drawn("p6c6fb215ef", "m0123456789"), drawn("pd36ccdb2f3", "mabcdef0123")
    other = drawn("p6c6fb215ef", "m0123456789", "M 0 1.6")
    names = re.compile(r'id="([^"]+)"')
    assert one != again
    assert with_equal_ids(one) == with_equal_ids(again) == with_equal_ids(with_equal_ids(one))
    assert len(names.findall(with_equal_ids(one))) == len({*names.findall(with_equal_ids(one))}) == 2
    assert not {*names.findall(with_equal_ids(one))} & {*names.findall(with_equal_ids(other))}
