"""When options of ``oneOf`` exclude each other, and that answers then fit exactly one of them."""

from __future__ import annotations

import json

import pytest
from jsonschema import Draft202012Validator
from support.constraints import accepts, byte_vocabulary, schema_of
from support.tables import all_of

from cactus_decoding.core.constraints.schema import checked_schema, exclude_each_other


def of(key: str, value: object, **more: object) -> dict:
    return {"type": "object", "properties": {key: value}, "required": [key]} | more


CAT, DOG = of("kind", {"const": "cat"}), of("kind", {"enum": ["dog", "wolf"]})
DEFS = {"$defs": {"cat": CAT, "dog": DOG, "a/b": {"type": "null"}, "name": {"type": "string"}}}
APART = {
    "types": ([{"type": ["string", "null"]}, {"type": "integer"}], {}),
    "constants": ([{"const": 1}, {"const": "1"}, {"enum": [True, [1]]}], {}),
    "a property": ([CAT, DOG], {}),
    "references": ([{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}, {"$ref": "#/$defs/a~1b"}], DEFS),
    "a property by reference": ([of("a", {"$ref": "#/$defs/name"}), of("a", {"type": "integer"})], DEFS),
    "required in one of them": ([CAT, DOG | {"required": []}], {}),
    "an object only by one of them": ([CAT, {"properties": DOG["properties"]}], {}),
    "a single one": ([{}], {}),
}
TOGETHER = {
    "integers are numbers": ([{"type": "integer"}, {"type": "number"}], {}),
    "one value written in two ways": ([{"const": 1}, {"enum": [1.0]}], {}),
    "zeros": ([{"const": -0.0}, {"const": 0}], {}),
    "great numbers": ([{"const": 2**60}, {"const": 2.0**60}], {}),
    "names in another order": ([{"const": {"a": 1, "b": 2}}, {"const": {"b": 2, "a": 1.0}}], {}),
    "a property that neither requires": ([CAT | {"required": []}, DOG | {"required": []}], {}),
    "no objects": ([{"properties": CAT["properties"], "required": ["kind"]}, {"properties": DOG["properties"]}], {}),
    "perhaps something else": ([CAT | {"type": ["object", "null"]}, DOG | {"type": ["object", "null"]}], {}),
    "a reference to nowhere": ([{"$ref": "#/$defs/none"}, {"type": "string"}], DEFS),
    "an anchor": ([{"$ref": "#cat"}, {"type": "string"}], DEFS),
    "a circle": ([{"$ref": "#/$defs/a"}, {"type": "string"}], {"$defs": {"a": {"$ref": "#/$defs/a"}}}),
    "beside a reference": ([{"$ref": "#/$defs/name", "const": "a"}, {"const": "b"}], DEFS),  # older drafts ignore that
    "too many": ([{"const": i} for i in range(100)], {}),
    "no schemas": ([{"type": 3, "required": 1, "enum": 2, "properties": [1]}, True], {}),
}  # fmt: skip


@all_of("case", [*APART, *TOGETHER])
def test_options_that_exclude_each_other_are_seen_and_no_others(case):
    assert exclude_each_other(*(APART | TOGETHER)[case]) is (case in APART)


def test_an_answer_fits_exactly_one_option():
    """A union by references, as pydantic writes one: llguidance alone refuses it."""
    schema = {
        "type": "object",
        "properties": {
            "pet": {
                "oneOf": [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}],
                "discriminator": {"propertyName": "kind", "mapping": {"cat": "#/$defs/cat", "dog": "#/$defs/dog"}},
            }
        },
        "required": ["pet"],
    } | DEFS
    constraint, validator = byte_vocabulary().constraint(schema_of(schema)), Draft202012Validator(schema)
    for pet, expected in (("cat", True), ("wolf", True), ("cow", False)):
        text = json.dumps({"pet": {"kind": pet}})
        assert accepts(constraint, text) == validator.is_valid(json.loads(text)) == expected


def test_where_parts_have_names_of_their_own_references_are_left_to_the_compiler():
    inner = {"$id": "https://a.b/c", "oneOf": [{"$ref": "#/$defs/x"}, {"type": "string"}], "$defs": {"x": {}}}
    schema = {"properties": {"a": inner}, "$defs": {"x": {"type": "null"}}}
    assert "oneOf" in checked_schema("it", schema)["properties"]["a"]
    with pytest.raises(ValueError, match="oneOf is supported where no answer fits two of its options"):
        byte_vocabulary().constraint(schema_of({"oneOf": [{"type": "integer"}, {"type": "number"}]}))
