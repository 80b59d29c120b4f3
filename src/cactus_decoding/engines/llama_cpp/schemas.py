"""From a client's JSON schema to a grammar, by llama-cpp-python's converter within bounds that it does not have."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

from cactus_decoding.core.mistakes import shown
from cactus_decoding.engines.llama_cpp.gbnf import MAX_REPETITIONS, MAX_TEXT, Grammar, NotGbnfError

MAX_DEPTH = 100
"""Objects and lists within each other: the converter is recursive Python, with several calls for each."""
MAX_NODES = 20_000
"""Values of a schema, and times that a part of it is converted: the converter converts some parts again and again."""
MAX_PROPERTIES = 200
"""Of an object: the converter's work grows with the third power of those that are optional."""
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems")
_OPTIONAL = re.compile(
    r'"(?:[^"\\]|\\.)*"|\[(?:[^\]\\]|\\.)*\]|\((?P<item>[^()]+?) (?:\((?P=item) )*\((?P=item)\)\?(?:\)\?)*'
)
"""Texts, sets, and what the converter writes for an item that may come up to three times: ``(a (a (a)?)?)?``."""
_KNOWN = ("object", "array", "string", "number", "integer", "boolean", "null", "value")


def schema_grammar(name: str, schema: Any) -> Grammar:
    """Return the grammar of the JSON that a schema allows.

    Args:
        name: what errors call the schema.
        schema: as a client sends it.

    Raises:
        ValueError: for a schema that the converter cannot read, or one beyond the bounds.

    Example:
        >>> schema_grammar("it", {"type": "string", "maxLength": 20_000})
        Traceback (most recent call last):
        ValueError: cannot read it: maxLength must be an integer from 0 to 1000 here, but is 20000
    """
    from llama_cpp.llama_grammar import JSON_GBNF

    if schema == {"type": "object"}:
        return Grammar(str(JSON_GBNF))
    try:
        _check(schema)
        converter = _converter()(prop_order={}, allow_fetch=False, dotall=False, raw_pattern=False)
        copy = json.loads(json.dumps(schema))  # references are resolved in place
        if "$ref" in copy:  # what else it holds is not looked at beside a reference
            copy["anyOf"] = [{"$ref": copy.pop("$ref")}]
        converter.visit(converter.resolve_refs(copy, "schema"), "")
        return Grammar(str(converter.format_grammar()))
    except NotGbnfError as error:
        raise ValueError(f"cannot read {name}: one of its texts or patterns cannot be written as a grammar") from error
    except (ValueError, AssertionError) as error:
        said = " ".join(str(error).split())
        said = said if len(said) <= 200 else f"{said[:197]}..."
        raise ValueError(f"cannot read {name}: {said or 'it has a part that is not known'}") from error
    except RecursionError as error:
        raise ValueError(f"cannot read {name}: it nests too deeply, or within itself") from error
    except Exception as error:  # the converter raises what it comes across
        raise ValueError(f"cannot read {name}: it has a part that is not known") from error


def _check(schema: Any) -> None:
    """Check how large a schema is, before anything recursive reads it."""
    todo, nodes, size = [("", schema, 1)], 0, 0
    while todo:
        key, value, depth = todo.pop()
        nodes += 1
        size += len(key) + (len(value) if isinstance(value, str) else 1)
        if depth > MAX_DEPTH:
            raise ValueError(f"it may nest {MAX_DEPTH} objects and lists, but has more")
        if nodes > MAX_NODES or size > MAX_TEXT:
            raise ValueError(f"it may have {MAX_NODES:,} values and {MAX_TEXT:,} characters, but has more")
        if isinstance(value, dict):
            todo += [(each, part, depth + 1) for each, part in value.items()]
        elif isinstance(value, list):
            todo += [("", part, depth + 1) for part in value]


@cache
def _converter() -> Any:
    from llama_cpp.llama_grammar import SchemaConverter

    class Bounded(SchemaConverter):
        """The converter, which stops where it would go on too long, and names what it does not know."""

        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self._visits = self._written = 0
            self._sized = set[str]()

        def visit(self, schema: Any, name: str) -> Any:
            self._visits += 1
            if self._visits > MAX_NODES:
                raise ValueError(f"its references may lead to {MAX_NODES:,} parts, but lead to more")
            if schema is True:
                schema = {"type": "value"}
            if not isinstance(schema, dict):
                raise ValueError(f"{name or 'it'} must be a schema that allows something, but is {shown(schema)}")
            for key in _COUNTS:
                count = schema.get(key, 0)
                if type(count) is not int or not 0 <= count <= MAX_REPETITIONS:
                    where = f" of {name}" if name else ""
                    raise ValueError(
                        f"{key}{where} must be an integer from 0 to {MAX_REPETITIONS} here, but is {shown(count)}"
                    )
            for least, most in (_COUNTS[:2], _COUNTS[2:]):
                if most in schema and schema[most] < schema.get(least, 0):
                    raise ValueError(
                        f"{most} must be at least {schema[least]}, which {least} is, but is {schema[most]}"
                    )
            properties = schema.get("properties", {})
            if isinstance(properties, dict) and len(properties) > MAX_PROPERTIES:
                raise ValueError(f"an object may have {MAX_PROPERTIES} properties, but one has {len(properties)}")
            types = schema.get("type", "value")
            for each in types if isinstance(types, list) else [types]:
                if each not in _KNOWN:
                    raise ValueError(f"{name or 'it'} must have a type that is known, but has {shown(each)}")
            return super().visit(schema, name)

        def _visit_pattern(self, pattern: Any, name: str) -> Any:
            if not isinstance(pattern, str):
                raise ValueError(f"pattern must be a text, but is {shown(pattern)}")
            for low, high in re.findall(r"\{\s*(\d*)\s*(?:,\s*(\d*)\s*)?\}", pattern):
                if max(len(low), len(high)) > 6 or max(int(low or 0), int(high or 0)) > MAX_REPETITIONS:
                    raise ValueError(f"pattern may repeat something {MAX_REPETITIONS} times, but is {shown(pattern)}")
            return super()._visit_pattern(pattern, name)

        def _add_rule(self, name: str, rule: str) -> Any:
            rule = _OPTIONAL.sub(_repeated, rule)
            key = super()._add_rule(name, rule)
            self._written += 0 if key in self._sized else len(rule)
            self._sized.add(key)
            if self._written > MAX_TEXT:
                raise ValueError(f"its grammar may have {MAX_TEXT:,} characters, but has more")
            return key

    return Bounded


def _repeated(found: re.Match[str]) -> str:
    """Return options within each other as a repetition, whose depth does not grow with the count."""
    item, text = found["item"], found[0]
    if item is None:
        return text
    before, _, _ = text.partition(")?")
    opened = (len(before) + 1) // (len(item) + 2)
    closed = (len(text) - len(before)) // 2
    return f"({item}){{0,{opened}}}" + ")?" * (closed - opened) if closed >= opened else text
