"""JSON that clients send: nothing of it is too deep to go on with, and all of its texts can be written."""

import json

import pytest
from support.tables import all_of

from cactus_decoding.core.files.writing import as_json
from cactus_decoding.engines.openai.reading import MAX_NESTING, NoJSONError, parse_body


def nested(levels, *kinds):
    """Return objects and lists in turns, within each other."""
    value = kinds[-1]()
    for place in range(levels - 1):
        value = {"a": value} if kinds[place % len(kinds)] is dict else [value]
    return value


@all_of("kinds", [(list,), (dict,), (list, dict)])
def test_as_many_levels_as_are_allowed_are_read_and_written_again(kinds):
    value = nested(MAX_NESTING, *kinds)
    assert json.loads(as_json(parse_body(json.dumps(value), "it"))) == value
    for deeper in (nested(MAX_NESTING + 1, *kinds), nested(600, *kinds)):
        with pytest.raises(ValueError, match=f"^it may nest {MAX_NESTING} objects and lists, but this one has more$"):
            parse_body(json.dumps(deeper), "it")


def test_what_python_itself_finds_too_deep_is_refused_in_the_same_words():
    for text in ("[" * 60_000, "[" * 60_000 + "]" * 60_000):
        with pytest.raises(ValueError, match=f"^it may nest {MAX_NESTING} objects and lists, but this one has more$"):
            parse_body(text, "it")


@all_of("text", [r'"\ud800"', r'{"\udfff": 1}', r'[["a\uD83D b"]]', b'"\xed\xa0\x80"', r'"\udc00\ud800"'])
def test_half_of_a_surrogate_pair_is_refused(text):
    with pytest.raises(
        ValueError, match=r"^it must be text in Unicode, but this one has half of a surrogate pair, .u[d-f]"
    ):
        parse_body(text, "it")


def test_whole_pairs_and_all_other_values_are_read():
    for value in ("\U0001f600", {"\U0001f600": ["\0", 1.5, None, True, 10**40]}, 3, "", []):
        for escaped in (True, False):
            assert parse_body(json.dumps(value, ensure_ascii=escaped), "it") == value


@all_of("text", ["", "{", b"\xff", "[1,]", "nul", "1" * 5_000])
def test_what_is_no_json_is_named_so(text):
    with pytest.raises(NoJSONError, match=r"^it must be JSON, but this one is not: "):
        parse_body(text, "it")
