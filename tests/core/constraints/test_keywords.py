"""What each keyword of JSON Schema means: values that are valid and values that are not, as answers are written."""

from __future__ import annotations

import json

from jsonschema import Draft202012Validator
from support.constraints import accepts, byte_vocabulary, schema_of
from support.tables import all_of

from cactus_decoding.core.constraints.schema import STRING_FORMATS, checked_schema

TEXT, INTEGER = {"type": "string"}, {"type": "integer"}
KEYWORDS = {
    "$anchor": ({"$ref": "#n", "$defs": {"a": {"$anchor": "n", "type": "integer"}}}, [1], ["a"]),
    "$ref with siblings": ({"$ref": "#/$defs/a", "maxItems": 1, "$defs": {"a": {"type": "array"}}}, [[]], [[1, 2], 1]),
    "$ref to a name with ~, / and %": (
        {"properties": {"a": {"$ref": "#/$defs/til~0de~1sl%25"}}, "$defs": {"til~de/sl%": INTEGER}, "type": "object"},
        [{"a": 1}], [{"a": "x"}],
    ),
    "a property named $ref": ({"properties": {"$ref": TEXT}, "type": "object"}, [{"$ref": "a"}], [{"$ref": 2}]),
    "$ref in a circle of properties": (
        {"properties": {"a": {"$ref": "#/$defs/b"}}, "type": "object", "additionalProperties": False,
         "$defs": {"b": {"$ref": "#"}}},
        [{"a": {"a": {}}}], [{"a": {"b": 1}}, {"a": 1}],
    ),
    "$ref twice along one path": (
        {"$defs": {"n": INTEGER}, "allOf": [{"properties": {"a": {"$ref": "#/$defs/n"}}},
                                            {"additionalProperties": {"$ref": "#/$defs/n"}}], "type": "object"},
        [{"a": 1}], [{"a": "x"}],
    ),
    "additionalProperties alone": ({"additionalProperties": {"type": "boolean"}}, [{"a": True}], [{"a": 1}]),
    "additionalProperties beside patterns": (
        {"patternProperties": {"^é": {}}, "properties": {"a": {}}, "additionalProperties": False},
        [{"a": 1}, {"éa": 2}], [{"b": 1}, {"ae": 1}],
    ),
    "additionalProperties does not see into allOf": (
        {"allOf": [{"properties": {"a": {}}}], "additionalProperties": {"type": "boolean"}}, [{"b": True}], [{"b": 1}],
    ),
    "allOf with what it stands beside": (
        {"properties": {"c": INTEGER}, "required": ["c"],
         "allOf": [{"properties": {"a": TEXT}, "required": ["a"]}, {"properties": {"b": {"type": "null"}}}]},
        [{"c": 2, "a": "x", "b": None}, {"c": 2, "a": "x"}], [{"c": 2}, {"c": 2, "a": "x", "b": 1}],
    ),
    "allOf of bounds": ({"type": "integer", "allOf": [{"minimum": 3}, {"maximum": 4}]}, [3, 4], [2, 5]),
    "allOf, anyOf and oneOf together": (
        {"type": "integer", "allOf": [{"multipleOf": 2}], "anyOf": [{"multipleOf": 3}], "oneOf": [{"multipleOf": 5}]},
        [30, 0], [6, 10, 15],
    ),
    "anyOf of an integer and a bound": ({"anyOf": [INTEGER, {"minimum": 2}]}, [1, 2.5, 3, "a"], [1.5]),
    "const of an object": ({"const": {"a": [1, {"b": None}]}}, [{"a": [1, {"b": None}]}], [{"a": [1]}, [1]]),
    "const false is no 0": ({"const": False}, [False], [0, [False], ""]),
    "const of a line": ({"const": "hello\nthere"}, ["hello\nthere"], ["hello\\nthere", "hello there"]),
    "enum of several kinds": ({"enum": [6, "foo", [], True, {"a": 12}]}, [[], {"a": 12}, True], [None, {"a": 1}, "6"]),
    "enum [0] is no [false]": ({"enum": [[0]]}, [[0]], [[False], [], 0]),
    "exclusiveMaximum": ({"type": "number", "exclusiveMaximum": 3.0, "minimum": 0}, [2.2, 2.99], [3.0, 3, 3.5]),
    "exclusiveMinimum": ({"type": "number", "exclusiveMinimum": 1.1}, [1.2, 2], [1.1, 0.6]),
    "items": ({"type": "array", "items": INTEGER}, [[], [1, 2]], [[1, "x"], {"0": 1}]),
    "items after prefixItems": (
        {"type": "array", "prefixItems": [TEXT], "items": INTEGER}, [[], ["a"], ["a", 1]], [[1], ["a", "b"]],
    ),
    "maxItems": ({"type": "array", "maxItems": 2}, [[], [1, 2]], [[1, 2, 3]]),
    "maxLength counts characters": ({"type": "string", "maxLength": 2}, ["ab", "😀é", "\n\\"], ["abc"]),
    "maximum": ({"type": "number", "maximum": 3.0}, [2.6, 3.0, -1e10], [3.5]),
    "maxProperties": ({"type": "object", "maxProperties": 0}, [{}], [{"a": 1}]),
    "minItems": ({"type": "array", "minItems": 1}, [[1], [1, 2]], [[]]),
    "minLength counts characters": ({"type": "string", "minLength": 2}, ["ab", "😀😀"], ["a", "😀", ""]),
    "minimum below zero": ({"type": "integer", "minimum": -2}, [-1, 0, -2, 100], [-3, -100]),
    "minProperties": ({"type": "object", "minProperties": 1}, [{"a": 1}, {"a": 1, "b": 2}], [{}]),
    "multipleOf with places": ({"type": "number", "multipleOf": 0.01, "minimum": 0}, [0.01, 0.25, 3], [0.001, 0.255]),
    "oneOf of objects told by a constant": (
        {"oneOf": [{"type": "object", "properties": {"k": {"const": k}, "v": v}, "required": ["k", "v"],
                    "additionalProperties": False} for k, v in (("a", INTEGER), ("b", TEXT))]},
        [{"k": "a", "v": 1}, {"k": "b", "v": "x"}], [{"k": "a", "v": "x"}, {"k": "c", "v": 1}, {"k": "a"}],
    ),
    "oneOf of types": ({"oneOf": [TEXT, {"type": "null"}, {"type": "array"}]}, ["a", None, []], [1, {}]),
    "pattern stands anywhere": ({"type": "string", "pattern": "a+"}, ["xaay", "a"], ["xy", ""]),
    "pattern of other scripts": ({"type": "string", "pattern": r"^\p{Letter}+$"}, ["héα"], ["h1"]),
    "patternProperties beside properties": (
        {"type": "object", "properties": {"foo": {"type": "array", "maxItems": 3}},
         "patternProperties": {"f.o": {"minItems": 2}}, "additionalProperties": INTEGER},
        [{"foo": [1, 2]}, {"fxo": [1, 2]}, {"b": 3}], [{"foo": []}, {"foo": [1, 2, 3, 4]}, {"fxo": []}, {"b": "x"}],
    ),
    "prefixItems": ({"prefixItems": [INTEGER, TEXT], "type": "array"}, [[], [1], [1, "a", None]], [["a"], [1, 1]]),
    "properties with odd names": (
        {"type": "object", "properties": {'a"b': INTEGER, "c\\d": INTEGER, "e\nf": INTEGER, "__proto__": INTEGER}},
        [{'a"b': 1, "c\\d": 2, "e\nf": 3, "__proto__": 4}], [{'a"b': "x"}, {"e\nf": "x"}, {"__proto__": "x"}],
    ),
    "required of names that are not described": (
        {"type": "object", "required": ["a", "b"]}, [{"a": 1, "b": 2}], [{"a": 1}, {}],
    ),
    "required twice in combination": (
        {"type": "object", "required": ["a"], "anyOf": [{"required": ["b"]}, {"required": ["c"]}],
         "properties": {"a": {}, "b": {}, "c": {}}},
        [{"a": 1, "b": 2}, {"a": 1, "c": 3}], [{"a": 1}, {"b": 2, "c": 3}],
    ),
    "type integer": ({"type": "integer"}, [1, -3, 10**20], [1.1, "1", True, None]),
    "type number": ({"type": "number"}, [1, 1.5, -2e10], ["1", None, False]),
    "types": ({"type": ["array", "object"]}, [[1], {"a": 1}], [1, "a", None]),
}  # fmt: skip
FORMATTED = {
    "date": (["2024-02-29", "2000-02-29", "1999-12-31"], ["2021-02-29", "2100-02-29", "2024-04-31", "24-01-01"]),
    "date-time": (["2024-02-29T23:59:59Z", "2024-01-01T00:00:00.5+14:00"], ["2021-02-29T00:00:00Z", "2024-01-01"]),
    "duration": (["P1DT2H", "PT36H"], ["1D", "P"]),
    "email": (["a.b@c.de"], ["a", "a@"]),
    "hostname": (["a", "a.b-c.de", "a" * 63], ["-a", "a-", "xn--a", "a" * 64, "a_b", ".".join(["a" * 62] * 5)]),
    "ipv4": (["0.0.0.0", "255.1.2.3"], ["256.1.1.1", "01.2.3.4"]),
    "ipv6": (["::1", "2001:db8::ff00:42:8329"], ["1::2::3", "12345::"]),
    "time": (["23:59:59Z", "00:00:00.25-05:00"], ["24:00:00Z", "23:59:60Z", "10:00:00"]),
    "uri": (["https://a.b/c?d=e#f"], ["a b", "//a"]),
    "uuid": (["12345678-1234-1234-1234-123456789abc"], ["12345678123412341234123456789abc"]),
    "int32": ([0, 2**31 - 1, -(2**31)], [2**31, 1.5]),
    "int64": ([2**53, -(2**53)], [2**53 + 2]),
    "uint32": ([0, 2**32 - 1], [-1, 2**32]),
    "uint64": ([0, 2**53], [-1]),
    "float": ([1, 0.5], []),
    "double": ([1, 0.5], []),
}


def written(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


@all_of("case", KEYWORDS)
def test_a_keyword_allows_its_valid_values_and_no_others(case):
    schema, valid, invalid = KEYWORDS[case]
    validator, constraint = Draft202012Validator(schema), byte_vocabulary().constraint(schema_of(schema))
    for value, expected in [*((each, True) for each in valid), *((each, False) for each in invalid)]:
        assert accepts(constraint, written(value)) == expected, value
        if r"\p" not in str(schema):  # which Python's expressions do not know
            assert validator.is_valid(value) == expected, value


def test_every_format_that_is_named_is_enforced():
    assert FORMATTED.keys() == STRING_FORMATS.keys()
    for name, (valid, invalid) in FORMATTED.items():
        kind = "string" if isinstance(valid[0], str) else "number" if name in ("float", "double") else "integer"
        constraint = byte_vocabulary().constraint(schema_of({"type": kind, "format": name}))
        assert [accepts(constraint, written(value)) for value in (*valid, *invalid)] == (
            [True] * len(valid) + [False] * len(invalid)
        ), name


def test_formats_hold_beside_what_else_is_said():
    schema = {"type": "integer", "format": "uint32", "minimum": -5, "maximum": 7}
    constraint = byte_vocabulary().constraint(schema_of(schema))
    assert [accepts(constraint, text) for text in ("0", "7", "-1", "8")] == [True, True, False, False]
    assert checked_schema("it", schema)["allOf"] == [STRING_FORMATS["uint32"]]
    assert checked_schema("it", {"format": "date"}) == STRING_FORMATS["date"]
    dates = {"type": "string", "format": "date", "pattern": "^2", "allOf": [{"pattern": "5$"}]}
    constraint = byte_vocabulary().constraint(schema_of(dates))
    texts = ('"2024-01-15"', '"2024-01-16"', '"1999-01-15"')
    assert [accepts(constraint, text) for text in texts] == [True, False, False]
