"""Answers of a form: JSON by a schema, and calls of a client's functions."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cactus_decoding.core.choices import check_choices, enum_choices, schema_choices
from cactus_decoding.core.constraints.grammar import Grammar, as_grammar, schema_grammar
from cactus_decoding.core.constraints.schema import checked_schema
from cactus_decoding.core.mistakes import check_choice, shown

_OPENING, _CLOSING = "<tool_call>", "</tool_call>"
"""Around a call where models write what they please: Hermes' form, which Qwen's and others' templates teach."""
_FORMS = ("response_format", "grammar", "guided_regex", "guided_choice", "structured_outputs")
_STRUCTURED = ("json", "regex", "grammar", "choice")


@dataclass(frozen=True)
class Tools:
    """What an answer may call.

    Attributes:
        functions: as clients describe them: ``name``, perhaps ``description`` and ``parameters``, a JSON schema.
        forced: functions of which one must be called; none, where the model decides.
        legacy: whether the request spoke of ``functions``, as clients once did.
    """

    functions: tuple[dict[str, Any], ...]
    forced: tuple[dict[str, Any], ...] = ()
    legacy: bool = False

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Tools | None:
        """Return those of a request's values; None where there are none, or none may be called.

        Raises:
            TypeError, ValueError: for functions without a name, or a choice among them that is none.
        """
        legacy = "functions" in values
        given = values["functions"] if legacy else [each.get("function") for each in values.get("tools", [])]
        name = "function_call" if legacy else "tool_choice"
        choice = values.get(name, "auto")
        for function in given:
            if not isinstance(function, dict) or not isinstance(function.get("name"), str):
                raise TypeError(f"each of the tools must be a function with a name, but one is {shown(function)}")
        if isinstance(choice, str):
            check_choice(name, choice, ("none", "auto", "required"))
            if not given and choice == "required":
                raise ValueError(f"{name} is 'required', but the request has no tools")
            functions = tuple(given)
            return None if not given or choice == "none" else cls(functions, functions * (choice == "required"), legacy)
        wanted = (choice if legacy else choice.get("function") or {}).get("name")
        chosen = tuple(each for each in given if each["name"] == wanted)
        if not chosen:
            known = ", ".join(each["name"] for each in given) or "none"
            raise ValueError(f"{name} names {shown(wanted)}, but the tools are: {known}")
        return cls(tuple(given), chosen, legacy)

    @property
    def described(self) -> list[dict[str, Any]]:
        """What chat templates are told."""
        return [{"type": "function", "function": each} for each in self.functions]

    @property
    def grammar(self) -> Grammar | None:
        """Of the text that a forced call is; None where the model decides.

        Raises:
            ValueError: with the tool's name, for parameters with a keyword that is not supported.
        """
        if not self.forced:
            return None
        alone = tuple(schema_grammar(_named(each), _parameters(each), closed=True) for each in self.forced)
        if len(alone) == 1:
            return alone[0]
        parts = {
            f"t{i}": checked_schema(_named(each), _parameters(each), f"#/$defs/t{i}", closed=True)
            for i, each in enumerate(self.forced)
        }
        calls = [
            {
                "type": "object",
                "properties": {"name": {"const": each["name"]}, "arguments": {"$ref": f"#/$defs/{part}"}},
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
            for part, each in zip(parts, self.forced, strict=True)
        ]
        return Grammar(
            "json_schema", json.dumps({"anyOf": calls, "$defs": parts}), "the tools' JSON schemas together", alone
        )

    def read(self, text: str) -> tuple[str | None, list[dict[str, Any]]]:
        """Return what an answer says and what it calls.

        Example:
            >>> tools = Tools(({"name": "add"},))
            >>> tools.read("So:<tool_call>{'no JSON'</tool_call>")[1]
            []
            >>> content, calls = tools.read('So: <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>')
            >>> content, calls[0]["function"]
            ('So:', {'name': 'add', 'arguments': '{"a": 1}'})
        """
        if len(self.forced) == 1:
            return None, [_call(self.forced[0]["name"], text)]
        before, *behind = text.split(_OPENING)
        if not behind:
            call = self._parsed(text)
            return (text, []) if call is None else (None, [call])
        found = [self._parsed(each.partition(_CLOSING)[0]) for each in behind]
        calls = [call for call in found if call is not None]
        return (text, []) if len(calls) < len(found) else (before.strip() or None, calls)

    def _parsed(self, text: str) -> dict[str, Any] | None:
        """Return the call of a function that is known, written as JSON."""
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return None
        if not isinstance(value, dict) or value.get("name") not in [each["name"] for each in self.functions]:
            return None
        given = value.get("arguments", value.get("parameters", {}))
        return _call(value["name"], given if isinstance(given, str) else json.dumps(given, ensure_ascii=False))

    def settled(self, text: str) -> int:
        """Return how many characters of an answer that grows are certain to be no call.

        Example:
            >>> tools = Tools(({"name": "add"},))
            >>> tools.settled("1 < 2"), tools.settled("So: <tool"), tools.settled('{"name"')
            (5, 4, 0)
        """
        if self.forced or text.lstrip()[:1] in ("", "{"):
            return 0
        begun = (n for n in range(len(_OPENING) - 1, 0, -1) if text.endswith(_OPENING[:n]))
        return text.index(_OPENING) if _OPENING in text else len(text) - next(begun, 0)


def _parameters(function: Mapping[str, Any]) -> dict[str, Any]:
    return function.get("parameters") or {"type": "object"}


def _named(function: Mapping[str, Any]) -> str:
    return f"the JSON schema of the tool {shown(function['name'])}"


def _call(name: str, arguments: str) -> dict[str, Any]:
    return {
        "id": f"call_{secrets.token_hex(12)}",
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def form_of(values: Mapping[str, Any], tools: Tools | None) -> Grammar | tuple[str, ...] | None:
    """Return the grammar of what a request's answer must look like, or the answers of which it is one.

    None where it may be anything.

    Raises:
        TypeError, ValueError: for a form that is not known, a schema with a keyword that is not supported, or two forms
            at once.
    """
    forms = [name for name in _FORMS if values.get(name, "") != ""]
    if values.get("response_format", {}).get("type") == "text":
        forms.remove("response_format")
    if tools is not None and tools.forced:
        forms.append("tools")
    if len(forms) > 1:
        raise ValueError(f"{forms[0]} and {forms[1]} exclude each other: each says what the answer looks like")
    if not forms:
        return None
    [form] = forms
    if form == "tools":
        assert tools is not None
        return tools.grammar
    if form == "grammar":
        return Grammar("gbnf", values["grammar"], "the grammar")
    if form == "guided_regex":
        return Grammar("regex", values["guided_regex"], "guided_regex")
    if form == "guided_choice":
        return check_choices(values["guided_choice"], "guided_choice")
    if form == "structured_outputs":
        return _structured(values["structured_outputs"])
    return enum_choices(values["response_format"]) or as_grammar(values["response_format"])


def _structured(given: Mapping[str, Any]) -> Grammar | tuple[str, ...]:
    """Return what vLLM's ``structured_outputs`` ask for."""
    named = [name for name, value in given.items() if value is not None]
    if len(named) != 1 or named[0] not in _STRUCTURED:
        raise ValueError(f"structured_outputs must have one of {', '.join(_STRUCTURED)}, but has {shown(named)}")
    [name] = named
    value, called = given[name], f"{name} of structured_outputs"
    if name == "choice":
        return check_choices(value, called)
    if name == "json":
        return schema_choices(value, called) or schema_grammar(called, value)
    if not isinstance(value, str):
        raise TypeError(f"{called} must be a text, but is {shown(value)}")
    return Grammar("regex" if name == "regex" else "gbnf", value, called)
