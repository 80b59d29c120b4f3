"""Which keywords of JSON Schema are supported; the others are refused by name and place."""

from __future__ import annotations

import json

import pytest
from support.tables import all_of

from cactus_decoding.core.constraints.base import MAX_BYTES, Grammar, as_grammar, schema_grammar
from cactus_decoding.core.constraints.schema import MAX_SCHEMA_DEPTH, checked_schema


def nested(depth: int) -> dict:
    schema: dict = {"type": "integer"}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


REFUSED = {
    "uniqueItems": ({"type": "array", "uniqueItems": True}, "uniqueItems at # is not supported: leave it out"),
    "not": ({"properties": {"a": {"not": {"type": "string"}}}}, "not at #/properties/a is not supported: say with"),
    "if": ({"if": {"type": "string"}, "then": {"maxLength": 1}}, "if at # is not supported: write the cases as anyOf"),
    "dependentRequired": ({"dependentRequired": {"a": ["b"]}}, "dependentRequired at # is not supported: write the"),
    "dependencies": ({"dependencies": {"a": ["b"]}}, "dependencies at # is not supported"),
    "contains": ({"items": {"contains": {}}}, "contains at #/items is not supported"),
    "propertyNames": ({"propertyNames": {"pattern": "^a"}}, "propertyNames at # is not supported: write pattern"),
    "unevaluatedProperties": ({"unevaluatedProperties": False}, "unevaluatedProperties at # is not supported"),
    "$dynamicRef": ({"$dynamicRef": "#a"}, r"\$dynamicRef at # is not supported: write \$ref"),
    "nullable": ({"type": "string", "nullable": True}, "nullable at # is not supported: write .null. among"),
    "contentEncoding": ({"contentEncoding": "base64"}, "contentEncoding at # is not supported: write a pattern"),
    "x-guidance": ({"x-guidance": {"lenient": True}}, "x-guidance at # is not supported"),
    "a typing mistake": ({"anyOf": [{"maxLenght": 3}]}, "maxLenght at #/anyOf/0 is not supported; did you mean 'max"),
    "a format": ({"$defs": {"a": {"format": "idn-email"}}}, r"format 'idn-email' at #/\$defs/a is not supported; k"),
    "int16": ({"type": "integer", "format": "int16"}, "format 'int16' at # is not supported"),
    "a format that is none": ({"format": ["email"]}, "format .* at # is not supported"),
    "another document": ({"$ref": "https://example.org/s"}, r"\$ref at # must lead to a part of the schema"),
    "a control character": ({"enum": ["a", {"b": ["\x01"]}]}, r"enum at # has the control character '\\x01'"),
    "minProperties": ({"minProperties": 2, "required": ["a"]}, "minProperties at # may be 1 where keys are free"),
    "depth": (nested(MAX_SCHEMA_DEPTH), "it may nest 200 objects and lists, but has more"),
    "no schema": ([], r"it must be an object, true or false, but is \[\]"),
}  # fmt: skip
KEPT = {
    "annotations": {"title": "T", "description": "not if", "default": 3, "x-order": 2, "discriminator": {"a": 1}},
    "unique items that need not be": {"type": "array", "uniqueItems": False},
    "names like keywords": {"properties": {"not": {"type": "string"}, "if": {}, "format": {}}},
    "values like keywords": {"enum": [{"not": {}, "format": "x"}], "const": {"if": 1}},
    "required properties": {"minProperties": 2, "required": ["a", "b"]},
    "named properties": {"minProperties": 2, "properties": {"a": {}, "b": {}}, "additionalProperties": False},
    "depth": nested(MAX_SCHEMA_DEPTH - 2),
}


@all_of("case", REFUSED)
def test_what_is_not_supported_is_refused_by_name_and_place(case):
    schema, said = REFUSED[case]
    with pytest.raises(ValueError, match=f"^cannot read the schema: {said}") as error:
        checked_schema("the schema", schema)
    assert len(str(error.value)) < 250


@all_of("case", KEPT)
def test_what_says_nothing_about_answers_is_left_out_and_the_rest_is_kept(case):
    schema = KEPT[case]
    kept = {name: value for name, value in schema.items() if name not in KEPT["annotations"] and name != "uniqueItems"}
    assert checked_schema("it", schema) == kept


def test_properties_keep_their_order_and_true_and_false_are_schemas():
    schema = {"properties": {name: {"type": "string"} for name in "zay"} | {"b": True, "c": False}}
    assert json.dumps(checked_schema("it", schema)) == json.dumps(schema)
    assert schema_grammar("it", True).text == "{}"
    with pytest.raises(ValueError, match="cannot read it: it is false, which allows nothing"):
        schema_grammar("it", False)


def test_references_follow_a_schema_into_a_larger_one():
    schema = {"$id": "a", "properties": {"a": {"$ref": "#"}, "b": {"$ref": "#/$defs/b"}, "c": {"$ref": "#c"}}}
    parts = checked_schema("it", schema, "#/$defs/t1")["properties"]
    assert [parts[name]["$ref"] for name in "abc"] == ["#/$defs/t1", "#/$defs/t1/$defs/b", "#c"]


def test_closed_objects_have_no_further_properties_unless_schemas_are_combined():
    inner = {
        "type": "object",
        "properties": {"a": {"type": "object", "properties": {"b": {}}}, "c": {"type": "object"}},
    }
    closed = checked_schema("it", inner, closed=True)
    assert closed["additionalProperties"] is closed["properties"]["a"]["additionalProperties"] is False
    assert "additionalProperties" not in closed["properties"]["c"]  # which names none
    said = {"properties": {"a": {}}, "additionalProperties": {"type": "integer"}}
    assert checked_schema("it", said, closed=True) == said
    for combined in (
        {"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]},
        {"properties": {"a": {}}, "anyOf": [{"properties": {"b": {}}}, {}]},
        {"$ref": "#/$defs/a", "oneOf": [{"properties": {"b": {}}}, {}], "$defs": {"a": {"properties": {"c": {}}}}},
    ):
        assert checked_schema("it", combined, closed=True) == combined
    alone = checked_schema("it", {"allOf": [{"properties": {"a": {}}}]}, closed=True)  # as pydantic writes a default
    assert alone == {"allOf": [{"properties": {"a": {}}, "additionalProperties": False}]}
    strict = as_grammar({"type": "json_schema", "json_schema": {"schema": inner, "strict": True}})
    assert json.loads(strict.text)["additionalProperties"] is False


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ("json", TypeError, "response_format must be an object with a type, but is 'json'"),
        (
            {"type": "xml"},
            ValueError,
            "response_format must be of type text, json_object, json_schema, grammar, but is",
        ),
        ({"type": "json_schema"}, ValueError, "response_format must have a json_schema with a schema"),
        ({"type": "grammar", "syntax": "ebnf", "definition": "a"}, ValueError, "the syntax of response_format must be"),
        (
            {"type": "grammar", "syntax": "lark", "definition": 3},
            TypeError,
            "the definition of response_format must be",
        ),
        ({"type": "grammar", "syntax": "gbnf", "definition": "\ud800"}, ValueError, "half of a surrogate pair"),
        (
            {"type": "grammar", "syntax": "regex", "definition": "a" * (MAX_BYTES + 1)},
            ValueError,
            "cannot read the regex of response_format: it may have 262,144 bytes, but has 262,145",
        ),
    ],
)
def test_a_response_format_that_is_none_is_refused_by_a_sentence(given, error, said):
    with pytest.raises(error, match=said):
        as_grammar(given)


def test_response_formats_of_ordinary_text_restrict_nothing():
    assert as_grammar(None) is as_grammar({"type": "text"}) is None
    assert as_grammar({"type": "json_object"}) == schema_grammar(
        "the JSON schema of response_format", {"type": "object"}
    )
    assert as_grammar({"type": "grammar", "syntax": "regex", "definition": "a+"}) == Grammar(
        "regex", "a+", "the regex of response_format"
    )
