"""What of JSON Schema is supported: everything else is refused by its name, because nothing may be ignored."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import combinations
from typing import Any
from urllib.parse import unquote

from cactus_decoding.core.checks import short_repr, suggestion

_LOCAL = r"[A-Za-z0-9_'+\-]"
_EMAIL = rf"^({_LOCAL}+\.)*{_LOCAL}*[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{{2,}}$"
_SECONDS = r"\d+([.,]\d+)?S"
_DURATION = rf"T(\d+H(\d+M)?({_SECONDS})?|\d+M({_SECONDS})?|{_SECONDS})"
_EQUAL = {
    # addresses, by zod 4 and by zod-to-json-schema for zod 3: no dot comes first, none follows another one
    r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$": _EMAIL,
    r"^(?!\.)(?!.*\.\.)([a-zA-Z0-9_'+\-\.]*)[a-zA-Z0-9_+-]@([a-zA-Z0-9][a-zA-Z0-9\-]*\.)+[a-zA-Z]{2,}$": _EMAIL,
    # durations, by zod 4: at least one unit, and one after T
    r"^P(?:(\d+W)|(?!.*W)(?=\d|T\d)(\d+Y)?(\d+M)?(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+([.,]\d+)?S)?)?)$": (
        rf"^P(\d+W|(\d+Y(\d+M)?(\d+D)?|\d+M(\d+D)?|\d+D)({_DURATION})?|{_DURATION})$"
    ),
    # decimals, by pydantic 2.12: at least one digit
    r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$": r"^[+-]?(\d+\.?\d*|\.\d+)$",
}
_DECIMAL_PLACES = re.compile(re.escape(r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d{0,") + r"([1-9]\d*)" + re.escape(r"}0*$"))
# those with a number of digits, of which pydantic's own pattern leaves the first kind open at its end
_DECIMAL_DIGITS = re.compile(
    re.escape(r"^(?!^[-+.]*$)[+-]?0*(?:\d{0,")
    + r"(\d+)"
    + re.escape(r"}|(?=[\d.]{1,")
    + r"(\d+)"
    + re.escape(r"}0*$)\d")
    + r"(?:\*|\{0,\1\})"
    + re.escape(r"\.\d")
    + r"(?:\*|\{0,(\d+)\})"
    + re.escape("0*$)")
)


def _decimal_digits(pattern: Any) -> tuple[int, int | None] | None:
    """Return how many digits pydantic's pattern of decimals allows before the point, and how many after it.

    None after the point stands for what the former leave of all digits.
    """
    found = _DECIMAL_DIGITS.fullmatch(pattern) if isinstance(pattern, str) else None
    if found is None or max(map(int, filter(None, found.groups()))) > _MAX_DIGITS:
        return None
    return int(found[1]), None if found[3] is None else int(found[3])


def _digits_pattern(whole: int, places: int | None) -> str:
    if places is None:
        parts = [rf"\d{{{before}}}\.\d{{0,{whole - before}}}0*" for before in range(1, whole + 1)]
        parts += [rf"\d{{1,{whole}}}", rf"\.\d{{1,{whole}}}0*"]
    elif not whole:  # of which pydantic refuses 0
        parts = [rf"0?\.\d{{0,{max(places, 1) - 1}}}[1-9]0*"]
    else:
        parts = [rf"\d{{1,{whole}}}(\.\d{{0,{places}}}0*)?"] + ([rf"\.\d{{1,{places}}}0*"] if places else [r"\.0+"])
    return rf"^[+-]?0*({'|'.join(parts)})$"


def _with_decimal_bounds(options: list[Any]) -> list[Any]:
    """Return options of which numbers have the digits that the pattern of a decimal's text names, as pydantic means."""
    patterns = [option.get("pattern") for option in options if isinstance(option, dict)]
    digits = next(filter(None, map(_decimal_digits, patterns)), None)
    if digits is None:
        return options
    whole, places = digits
    if not whole:
        return [option for option in options if not isinstance(option, dict) or option.get("type") != "number"]
    bounds: dict[str, Any] = {"exclusiveMinimum": -(10**whole), "exclusiveMaximum": 10**whole}
    bounds |= {"type": "integer"} if not places else {"type": "number", "multipleOf": float(f"1e-{places}")}
    number = [isinstance(option, dict) and option.get("type") == "number" for option in options]
    return [
        {"allOf": [option, bounds]} if is_number else option for option, is_number in zip(options, number, strict=True)
    ]


def without_lookahead(pattern: str) -> str:
    """Return an equal pattern that does not look ahead, where one is known; any other as it is.

    Of decimals with a number of digits it is what is meant: pydantic's own ends anywhere after these.
    """
    if (digits := _decimal_digits(pattern)) is not None:
        return _digits_pattern(*digits)
    if found := _DECIMAL_PLACES.fullmatch(pattern):
        return rf"^[+-]?(\d+(\.\d{{0,{found[1]}}}0*)?|\.(\d{{1,{found[1]}}}0*|0+))$"
    return _EQUAL.get(pattern, pattern)


_MAX_DIGITS = 32  # of decimals, whose patterns name each number of digits
_MAX_OPTIONS, _MAX_NAMES, _MAX_REFERENCES = 32, 32, 8
"""Options of a union, properties of two options, references one after another: what lies beyond is not looked at."""
TYPE_NAMES: dict[type, str] = {
    type(None): "null", bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object",
}  # fmt: skip
_TYPES = frozenset(TYPE_NAMES.values())


def exclude_each_other(options: list[Any], whole: Any) -> bool:
    """Return whether no value fits two of these schemas, as far as that is seen at once."""
    if len(options) > _MAX_OPTIONS:
        return False
    parts = [resolved(option, whole) for option in options]
    return all(_differ(a, b) or _properties_differ(a, b, whole) for a, b in combinations(parts, 2))


def _differ(some: dict[str, Any], other: dict[str, Any]) -> bool:
    """Return whether no value has the types and is among the constants that both schemas name."""
    mine, theirs = _values(some), _values(other)
    return not _types(some) & _types(other) or (mine is not None and theirs is not None and not mine & theirs)


def _properties_differ(some: dict[str, Any], other: dict[str, Any], whole: Any) -> bool:
    """Return whether no object fits both schemas, because one requires a property that has no value for both."""
    if _types(some) & _types(other) != {"object"}:
        return False
    required = {*_names(some.get("required")), *_names(other.get("required"))}
    mine, theirs = (each.get("properties") for each in (some, other))
    if not isinstance(mine, dict) or not isinstance(theirs, dict):
        return False
    shared = [name for name in mine if name in required and name in theirs]
    return any(_differ(resolved(mine[n], whole), resolved(theirs[n], whole)) for n in shared[:_MAX_NAMES])


def resolved(schema: Any, whole: Any) -> dict[str, Any]:
    """Return the schema that a reference leads to, without what stands beside it: older drafts ignore that."""
    for _ in range(_MAX_REFERENCES):
        if not isinstance(schema, dict) or not isinstance(schema.get("$ref"), str):
            break
        schema = _at(whole, schema["$ref"])
    return schema if isinstance(schema, dict) else {}


def _at(whole: Any, reference: str) -> Any:
    """Return the part of a schema that a reference leads to; None for an anchor, or where there is none."""
    part: Any = whole
    for step in unquote(reference).removeprefix("#").split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(part, list) and step.isdecimal() and int(step) < len(part):
            part = part[int(step)]
        else:
            part = part.get(step) if isinstance(part, dict) else None
    return part if reference == "#" or reference.startswith("#/") else None


def _types(schema: dict[str, Any]) -> frozenset[str]:
    """Return the types that a value may have; integers are numbers too."""
    given = schema.get("type")
    if not isinstance(given, str | list):
        return _TYPES
    named = frozenset(_names([given] if isinstance(given, str) else given))
    return named | {"integer"} if "number" in named else named


def value_types(schema: Any, whole: Any, levels: int = 3) -> frozenset[str]:
    """Return the types that a value may have, through references and combinations; a number may be an integer too.

    Example:
        >>> sorted(value_types({"anyOf": [{"type": "string"}, {"const": None}]}, {}))
        ['null', 'string']
    """
    part = resolved(schema, whole)
    if (values := named_values(part, whole)) is not None:
        return frozenset(TYPE_NAMES[type(value)] for value in values)
    types = _types(part)
    for word in ("anyOf", "oneOf", "allOf"):
        options = part.get(word)
        if isinstance(options, list) and 0 < len(options) <= _MAX_OPTIONS and levels:
            found = [value_types(option, whole, levels - 1) for option in options]
            types &= frozenset.intersection(*found) if word == "allOf" else frozenset().union(*found)
    return types


def named_values(schema: Any, whole: Any) -> list[Any] | None:
    """Return the values of a constant or an enumeration; None where there is neither."""
    part = resolved(schema, whole)
    given = [part["const"]] if "const" in part else part.get("enum")
    return given if isinstance(given, list) and all(type(each) in TYPE_NAMES for each in given) else None


def _values(schema: dict[str, Any]) -> frozenset[str] | None:
    """Return the values that a constant or an enumeration names, as text; None where there is neither."""
    given = [schema["const"]] if "const" in schema else schema.get("enum")
    return (
        frozenset(json.dumps(_as_floats(each), sort_keys=True) for each in given) if isinstance(given, list) else None
    )


def _as_floats(value: Any) -> Any:
    """Return a value whose numbers look alike where they are equal: 1, 1.0 and, for 0, -0.0."""
    if isinstance(value, list):
        return [_as_floats(each) for each in value]
    if isinstance(value, dict):
        return {name: _as_floats(each) for name, each in value.items()}
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    try:
        return float(value) + 0.0 if float(value) == value else value
    except OverflowError:
        return value


def _names(given: Any) -> list[str]:
    return [name for name in given if isinstance(name, str)] if isinstance(given, list) else []


_PYDANTIC = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}
"""Bounds as pydantic writes them beside a union of numbers."""
MAX_SCHEMA_DEPTH = 200  # objects and lists within each other
_SUPPORTED = frozenset(
    [
        *("type", "enum", "const", "$ref", "allOf", "anyOf", "oneOf"),
        *("properties", "patternProperties", "additionalProperties", "required", "minProperties", "maxProperties"),
        *("items", "prefixItems", "additionalItems", "minItems", "maxItems"),
        *("minLength", "maxLength", "pattern", "format"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
        *("$defs", "definitions", "$id", "$anchor", "$schema"),
    ]
)
_ANNOTATIONS = frozenset(
    [
        *("title", "description", "default", "example", "examples", "deprecated", "readOnly", "writeOnly", "$comment"),
        "discriminator",
    ]
)
"""These say nothing about what is valid: a ``discriminator`` only names the property by which ``oneOf`` is told."""
_CHECK_AFTERWARDS = "leave it out, and check the answer for it"
_ANY_OF = "write the cases as anyOf"
_HINTS = {
    "uniqueItems": _CHECK_AFTERWARDS,
    "contains": _CHECK_AFTERWARDS,
    "minContains": _CHECK_AFTERWARDS,
    "maxContains": _CHECK_AFTERWARDS,
    "not": "say with enum, anyOf or pattern what is allowed",
    **dict.fromkeys(("if", "then", "else", "dependentRequired", "dependentSchemas", "dependencies"), _ANY_OF),
    "propertyNames": "write patternProperties, with additionalProperties false",
    "unevaluatedProperties": "write additionalProperties false",
    "unevaluatedItems": "write items false after prefixItems",
    "nullable": 'write "null" among its types',
    **dict.fromkeys(("contentEncoding", "contentMediaType", "contentSchema"), "write a pattern"),
    **dict.fromkeys(("$dynamicRef", "$dynamicAnchor", "$recursiveRef", "$recursiveAnchor"), "write $ref"),
    "x-guidance": "how JSON is written is decided here",
}
_SCHEMAS = frozenset(["additionalProperties", "additionalItems", "items"])
_LISTS = frozenset(["allOf", "anyOf", "oneOf", "prefixItems", "items"])
_NAMED = frozenset(["properties", "patternProperties", "$defs", "definitions"])
_ESCAPED = frozenset("\b\f\n\r\t")
"""Control characters that JSON writes with a letter; the others, as ``\\u0001``, are not written."""


def checked_schema(name: str, schema: Any, base: str = "#", *, closed: bool = False) -> Any:
    """Return a schema without what changes nothing, or raise `ValueError` with the first keyword that is not supported.

    Args:
        name: what messages call the schema.
        schema: as a client sends it.
        base: where the schema will stand in a larger one, as its references then have to say.
        closed: whether objects have no other properties than those that are named, where the schema does not say. This
            is left out where schemas are combined, which would then exclude each other.
    """

    def refuse(said: str) -> ValueError:
        return ValueError(f"cannot read {name}: {said}")

    if any(level > MAX_SCHEMA_DEPTH for each, level in _nested(schema) if isinstance(each, dict | list)):
        raise refuse(f"it may nest {MAX_SCHEMA_DEPTH} objects and lists, but has more")
    if not isinstance(schema, dict | bool):
        raise refuse(f"it must be an object, true or false, but is {short_repr(schema)}")
    whole: dict[str, Any] = {}
    unions, has_parts_of_their_own = list[tuple[dict[str, Any], list[Any]]](), False
    objects, meanings = list[dict[str, Any]](), list[tuple[dict[str, Any], dict[str, Any]]]()
    todo: list[tuple[str, Any, dict[Any, Any] | list[Any], Any]] = [("#", schema, whole, "schema")]
    while todo:
        path, each, parent, key = todo.pop()
        if not isinstance(each, dict):  # true, false, or what the compiler refuses
            parent[key] = each
            continue
        if each.get("not") in ({}, True) and isinstance(each["not"], dict | bool):  # as zod says that there is no value
            parent[key] = False
            continue
        copy: dict[str, Any] = {}
        parent[key] = copy
        objects.append(copy)
        has_parts_of_their_own |= "$id" in each and path != "#"  # in which references lead elsewhere
        for said, value in each.items():
            word = str(_PYDANTIC.get(said, said) if "anyOf" in each else said)
            where = f"{path}/{word}"
            if word in _ANNOTATIONS or (word.startswith("x-") and word not in _HINTS):
                continue
            if word == "uniqueItems" and value is False:
                continue
            if base != "#" and word in ("$id", "$schema"):
                continue
            if word not in _SUPPORTED:
                hint = f": {_HINTS[word]}" if word in _HINTS else suggestion(word, _SUPPORTED)
                raise refuse(f"{word} at {path} is not supported{hint}")
            if word in _NAMED and isinstance(value, dict):
                copy[word] = dict.fromkeys(value)  # the order of properties is that of the answer
                todo += [(f"{where}/{named}", part, copy[word], named) for named, part in value.items()]
            elif word in _LISTS and isinstance(value, list):
                if word == "oneOf":
                    unions.append((copy, value))
                elif word == "anyOf":
                    value = _with_decimal_bounds(value)
                copy[word] = [None] * len(value)
                todo += [(f"{where}/{i}", part, copy[word], i) for i, part in enumerate(value)]
            elif word in _SCHEMAS:
                todo.append((where, value, copy, word))
            elif word == "format" and isinstance(value, str) and (meaning := STRING_FORMATS.get(value)) is not None:
                meanings.append((copy, meaning))
            else:
                copy[word] = _checked(word, value, path, each, base, refuse)
    if closed and not any(_combines(each) for each in objects):
        for each in objects:
            if "properties" in each and "patternProperties" not in each:
                each.setdefault("additionalProperties", False)
    for each, meaning in meanings:
        if each.keys() & meaning.keys():
            each["allOf"] = [*each.get("allOf", []), meaning]
        else:
            each.update(meaning)
    for each, options in unions:
        if not has_parts_of_their_own and exclude_each_other(options, schema):
            same = {"anyOf": each.pop("oneOf")}
            if "anyOf" in each:
                each["allOf"] = [*each.get("allOf", []), same]
            else:
                each.update(same)
    return whole["schema"]


def _combines(schema: dict[str, Any]) -> bool:
    """Return whether an object has to fit several schemas at once, each of which may name some of its properties."""
    several = [schema[word] for word in ("allOf", "anyOf", "oneOf") if word in schema]
    beside = len(several) + ("$ref" in schema) + ("properties" in schema)
    return (several != [] and beside > 1) or len(schema.get("allOf", [])) > 1


def _checked(word: str, value: Any, path: str, schema: dict[str, Any], base: str, refuse: Any) -> Any:
    """Return the value of a keyword whose value is no schema."""
    if word == "pattern" and isinstance(value, str):
        return without_lookahead(value)
    if word == "type":
        for kind in value if isinstance(value, list) else [value]:
            if not isinstance(kind, str) or kind not in _TYPES:
                allowed = ", ".join(sorted(_TYPES))
                close = suggestion(kind, _TYPES)
                raise refuse(f"type at {path} must be one of {allowed}, but is {short_repr(kind)}{close}")
    if word == "format" and (not isinstance(value, str) or value not in STRING_FORMATS):
        raise refuse(f"format {short_repr(value)} at {path} is not supported; known are {', '.join(STRING_FORMATS)}")
    if word == "$ref":
        if not isinstance(value, str) or not value.startswith("#"):
            raise refuse(
                f"$ref at {path} must lead to a part of the schema, as in '#/$defs/name', but is {short_repr(value)}"
            )
        return value if base == "#" or value[1:2] not in ("", "/") else base + value[1:]
    if word in ("enum", "const") and (bad := _control_character(value)):
        raise refuse(f"{word} at {path} has the control character {bad!r}, which is not supported")
    # an object may name a key twice, and then has one property: that is seen to only where keys are told apart
    if word == "minProperties" and isinstance(value, int) and value > 1:
        free = schema.get("additionalProperties") is not False or "patternProperties" in schema
        if free and not (isinstance(named := schema.get("required"), list) and value <= len(named)):
            raise refuse(
                f"minProperties at {path} may be 1 where keys are free, but is {value}: name required properties"
            )
    return value


def _control_character(value: Any) -> str:
    """Return the first control character, in texts of any depth, that JSON can only write as a number."""
    texts = (each for each, _ in _nested(value) if isinstance(each, str))
    return next((letter for text in texts for letter in text if letter < " " and letter not in _ESCAPED), "")


def _nested(value: Any) -> Iterator[tuple[Any, int]]:
    """Yield a value and what is within it, keys too, each with its level; nothing here is recursive."""
    todo = [(value, 1)]
    while todo:
        each, level = todo.pop()
        yield each, level
        within = [*each, *each.values()] if isinstance(each, dict) else each if isinstance(each, list) else []
        todo += [(part, level + 1) for part in within]


_LEAP_YEAR = r"(\d\d(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)"
_DATE = (
    r"(\d{4}-((0[13578]|1[02])-(0[1-9]|[12]\d|3[01])|(0[469]|11)-(0[1-9]|[12]\d|30)|02-(0[1-9]|1\d|2[0-8]))"
    rf"|{_LEAP_YEAR}-02-29)"
)
_HOUR = r"([01]\d|2[0-3])"
_TIME = rf"{_HOUR}:[0-5]\d:[0-5]\d(\.\d{{1,9}})?(Z|[+-]{_HOUR}:[0-5]\d)"
# at most 63 characters, without "--" in the third and fourth place, as encoded names of other scripts have it
_INNER = r"[A-Za-z0-9-]([A-Za-z0-9][A-Za-z0-9-]|-[A-Za-z0-9])[A-Za-z0-9-]{0,58}"
_LABEL = rf"[A-Za-z0-9](([A-Za-z0-9-]?|{_INNER})[A-Za-z0-9])?"
_EXACT = 2**53  # up to here every reader of JSON keeps integers as they are

STRING_FORMATS: dict[str, dict[str, Any] | None] = {
    "date": {"pattern": f"^{_DATE}$"},
    "date-time": {"pattern": f"^{_DATE}T{_TIME}$"},
    "double": {},
    "duration": None,
    "email": None,
    "float": {},
    "hostname": {"maxLength": 253, "pattern": rf"^{_LABEL}(\.{_LABEL})*$"},
    "int32": {"minimum": -(2**31), "maximum": 2**31 - 1},
    "int64": {"minimum": -_EXACT, "maximum": _EXACT},
    "ipv4": None,
    "ipv6": None,
    "time": {"pattern": f"^{_TIME}$"},
    "uint32": {"minimum": 0, "maximum": 2**32 - 1},
    "uint64": {"minimum": 0, "maximum": _EXACT},
    "uri": None,
    "uuid": None,
}
"""What each means in other keywords; None for those that llguidance enforces itself.

Days exist in their month and year, and there are no leap seconds, which few readers of times take. The names of
integers and numbers are those of OpenAPI.
"""
