"""Patterns that clients' libraries write with a look-ahead, beside the equal forms without."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.constraints import accepts, byte_vocabulary, schema_of

from cactus_decoding.core.constraints.schema import without_lookahead

EMAIL = r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"
EMAIL_OF_ZOD_3 = EMAIL.replace("A-Za-z", "a-zA-Z")
DURATION = r"^P(?:(\d+W)|(?!.*W)(?=\d|T\d)(\d+Y)?(\d+M)?(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+([.,]\d+)?S)?)?)$"
DECIMAL = r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"
PLACES = r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d{0,2}0*$"
PATTERNS = {
    EMAIL: ("a'.@-", 8, ["a.b'c@d-e.fg", "_@a.bc"], [".a@b.cd", "a..b@c.de", "a.@b.cd", "a'@b.cd", "a@b", "a@b..cd"]),
    EMAIL_OF_ZOD_3: ("Z+.@", 7, ["A+b@c.de"], ["a..b@c.de"]),
    DURATION: ("P1WYMTS.", 6, ["P1Y2M3DT4H5M6.7S", "P3W", "PT1M", "P1D"], ["P", "PT", "P1YT", "P1W2D", "P1H", "P1.5D"]),
    DECIMAL: ("+-01.", 7, ["+0.50", "1.", ".5", "-0"], ["", "+", ".", "-.", "1.2.3", "1e3"]),
    PLACES: ("+01.", 8, ["12.34", "12.34000", ".00", "7"], [".", "1.234", ".001"]),
}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_form_without_accepts_the_same_texts(pattern):
    """All short ones over an alphabet in which every rule of the pattern can be kept and broken."""
    alphabet, longest, valid, invalid = PATTERNS[pattern]
    mine = without_lookahead(pattern)
    assert "(?=" not in mine
    assert "(?!" not in mine
    whole, equal = (re.compile(each, re.ASCII) for each in (pattern, mine))
    assert [bool(equal.fullmatch(text)) for text in (*valid, *invalid)] == [True] * len(valid) + [False] * len(invalid)
    texts = ("".join(letters) for n in range(longest + 1) for letters in itertools.product(alphabet, repeat=n))
    differing = [text for text in texts if bool(whole.fullmatch(text)) != bool(equal.fullmatch(text))]
    assert differing == []


@pytest.mark.parametrize("pattern", PATTERNS)
@given(data=st.data())
def test_longer_texts_are_those_of_either_pattern(pattern, data):
    mine = without_lookahead(pattern)
    drawn, other = data.draw(st.permutations([pattern, mine]))
    text = data.draw(st.from_regex(re.compile(drawn, re.ASCII), fullmatch=True))
    assert re.compile(other, re.ASCII).fullmatch(text)
    place = data.draw(st.integers(0, len(text)))  # changed in one place, so that most are just not what is allowed
    changed = text[:place] + data.draw(st.sampled_from(".'@PTW0+")) + text[place + 1 :]
    matched = [re.compile(each, re.ASCII).fullmatch(changed) is not None for each in (pattern, mine)]
    assert matched[0] == matched[1]


@pytest.mark.parametrize(
    ("pattern", "format"), [(EMAIL, "email"), (DURATION, "duration"), (DECIMAL, None), (PLACES, None)]
)
def test_schemas_of_clients_with_such_a_pattern_are_followed(pattern, format):
    _, _, valid, invalid = PATTERNS[pattern]
    schema = {"type": "string", "pattern": pattern} | ({"format": format} if format else {})
    constraint = byte_vocabulary().constraint(schema_of(schema))
    assert accepts(constraint, f'"{valid[-1]}"')
    assert not any(accepts(constraint, f'"{text}"') for text in invalid)


def test_other_patterns_are_left_as_they_are():
    for pattern in ("^a+$", EMAIL + "|x", "^(?=a).*$"):
        assert without_lookahead(pattern) == pattern
