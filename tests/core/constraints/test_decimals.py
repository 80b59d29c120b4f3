"""Decimals as pydantic describes them: what is kept is what pydantic itself takes, as a text and as a number."""

import itertools
import json
import re
from decimal import Decimal
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError
from support.constraints import accepts, byte_vocabulary, schema_of
from support.tables import all_of


def pattern(digits, places):
    """Return pydantic 2.12's pattern, whose first part any text may follow."""
    if places is None:
        whole, end = digits, r"\d*\.\d*0*$"
    else:
        whole = max(0, digits - places)
        end = rf"\d{{0,{whole}}}\.\d{{0,{places}}}0*$"
    return rf"^(?!^[-+.]*$)[+-]?0*(?:\d{{0,{whole}}}|(?=[\d.]{{1,{digits + 1}}}0*$){end})"


def schema(digits, places, **bounds):
    number = {"type": "number"} | bounds
    return {"anyOf": [number, {"type": "string", "pattern": pattern(digits, places)}]}


def takes(kind, text):
    try:
        kind.validate_json(text)
    except ValidationError:
        return False
    return True


TEXTS = ["".join(letters) for n in range(1, 6) for letters in itertools.product("-0.12", repeat=n)]


@all_of("digits, places", [(3, 1), (2, 2), (2, 0), (2, None), (1, 1)])
def test_what_is_kept_is_what_pydantic_takes(digits, places):
    """All short texts, and as JSON the numbers among them. Numbers are written in one way, without a 0 at the end."""
    kind = TypeAdapter(Annotated[Decimal, Field(max_digits=digits, decimal_places=places)])
    constraint = byte_vocabulary().constraint(schema_of(schema(digits, places)))
    accepted = [text for text in TEXTS[::3] for text in (text, json.dumps(text)) if accepts(constraint, text)]
    assert len(accepted) >= 10
    assert [text for text in accepted if not takes(kind, text)] == []
    texts = {text for text in TEXTS[::3] if takes(kind, json.dumps(text)) and Decimal(text)}
    assert {text for text in texts if json.dumps(text) not in accepted} == set()


def test_a_text_that_the_pattern_itself_lets_through_is_no_decimal():
    """The wrong variant: pydantic's pattern, as it is written."""
    kind = TypeAdapter(Annotated[Decimal, Field(max_digits=6, decimal_places=2)])
    assert re.search(pattern(6, 2), "12000")
    assert not takes(kind, '"12000"')
    constraint = byte_vocabulary().constraint(schema_of(schema(6, 2)))
    for text in ("12000", '"12000"', "1.234", '"1.234"'):
        assert not accepts(constraint, text), text
    for text in ("9999.99", '"9999.99"', "-0.5", '"0012.50"'):
        assert accepts(constraint, text), text


def test_bounds_of_its_own_are_kept_too():
    constraint = byte_vocabulary().constraint(schema_of(schema(6, 2, minimum=0, maximum=5000)))
    found = {text: accepts(constraint, text) for text in ("5000", "5001", "4999.99", "4999.999", "-1", "12000")}
    assert [text for text, accepted in found.items() if accepted] == ["5000", "4999.99"]


def test_numbers_in_unions_keep_their_bounds():
    both = [{"type": "integer", "minimum": 1, "maximum": 5}, {"type": "number", "minimum": 10, "exclusiveMaximum": 20}]
    for union, kept, left in (
        ({"anyOf": both}, ("5", "10", "19.99"), ("0", "6", "9.5", "20")),
        ({"anyOf": [both[0], {"type": "null"}]}, ("1", "null"), ("0", "6", "5.5")),
        ({"type": ["number", "null"], "minimum": 0, "maximum": 5}, ("0", "4.5", "null"), ("-1", "5.1", "12000")),
        # as pydantic writes bounds of a union
        ({"anyOf": [{"type": "integer"}, {"type": "number"}], "ge": 0, "lt": 5}, ("0", "4.5"), ("-1", "5", "5.1")),
    ):
        constraint = byte_vocabulary().constraint(schema_of(union))
        assert all(accepts(constraint, text) for text in kept), union
        assert not any(accepts(constraint, text) for text in left), union
