"""Answers of a form: JSON by a schema, and calls of a client's functions between a model's own marks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from cactus_decoding.core.checks import check_choice, short_repr
from cactus_decoding.core.choices import check_choices, enum_choices, schema_choices
from cactus_decoding.core.constraints.base import Grammar, as_grammar, schema_grammar
from cactus_decoding.core.constraints.schema import checked_schema
from cactus_decoding.engines.llama_cpp.server.call_grammar import NO_MARKS, CallMarks, Function, embedded
from cactus_decoding.engines.openai.keys import errors_about
from cactus_decoding.engines.openai.tool_calls import CallReader
from cactus_decoding.engines.openai.tool_formats import HERMES, LLAMA

MAX_CALLS = 16  # of an answer, where a grammar counts them
_DESCRIPTION = """# Tools

You may call one or more of these functions:
<tools>
{tools}
</tools>

To call a function, write its name and arguments as JSON between these marks:
<tool_call>
{{"name": "NAME", "arguments": {{"ARGUMENT": "VALUE"}}}}
</tool_call>"""
_FORMS = ("response_format", "grammar", "guided_regex", "guided_choice", "structured_outputs")
_TOGETHER = "the tools' JSON schemas together"
_STRUCTURED = ("json", "regex", "grammar", "choice")


@dataclass(frozen=True)
class Tools:
    # as clients describe them: ``name``, perhaps ``description`` and ``parameters``, a JSON schema
    functions: tuple[dict[str, Any], ...]
    forced: tuple[dict[str, Any], ...] = ()  # functions of which one must be called; none, where the model decides
    legacy: bool = False  # whether the request spoke of ``functions``, as clients once did
    most: int = MAX_CALLS  # how many calls an answer may have, where a grammar counts them
    allowed: tuple[dict[str, Any], ...] | None = None  # those that may be called, if not all
    unmarked: bool = True  # whether JSON without a mark that names a function is a call
    END: ClassVar[str] = "</tools>"  # of their description in a system message

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Tools | None:
        """Return those of a request's values; None where there are none, or none may be called."""
        legacy = "functions" in values
        given = values["functions"] if legacy else [each.get("function") for each in values.get("tools", [])]
        name = "function_call" if legacy else "tool_choice"
        choice = values.get(name, "auto")
        most = 1 if legacy or values.get("parallel_tool_calls") is False else MAX_CALLS
        for function in given:
            if not isinstance(function, dict) or not isinstance(function.get("name"), str):
                raise TypeError(f"each of the tools must be a function with a name, but one is {short_repr(function)}")
            if not isinstance(function.get("parameters") or {}, dict):
                raise TypeError(f"{_named(function)} must be an object, but is {short_repr(function['parameters'])}")
        allowed = None
        if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
            allowed, choice = _allowed(choice, given)
        unmarked = values.get("unmarked_tool_calls", True)
        if isinstance(choice, str):
            check_choice(name, choice, ("none", "auto", "required"))
            if not given and choice == "required":
                raise ValueError(f"{name} is 'required', but the request has no tools")
            functions = tuple(given)
            forced = (functions if allowed is None else allowed) * (choice == "required")
            none = not given or choice == "none"
            return None if none else cls(functions, forced, legacy, most, allowed, unmarked)
        wanted = (choice if legacy else choice.get("function") or {}).get("name")
        return cls(tuple(given), (_chosen(name, wanted, given),), legacy, most, None, unmarked)

    @property
    def described(self) -> list[dict[str, Any]]:
        return [{"type": "function", "function": each} for each in self.functions]

    def told_in(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        r"""Return a conversation for a template that knows no tools: in texts, in the form that Hermes taught.

        Example:
            >>> tools = Tools(({"name": "add"},))
            >>> called = [{"function": {"name": "add", "arguments": {}}}]
            >>> system, call, result = tools.told_in(
            ...     [{"role": "assistant", "content": "", "tool_calls": called}, {"role": "tool", "content": "5"}]
            ... )
            >>> system["role"], call["content"]
            ('system', '<tool_call>\n{"name": "add", "arguments": {}}\n</tool_call>')
            >>> result
            {'role': 'user', 'content': '<tool_response>\n5\n</tool_response>'}
        """
        told = [_as_text(message) for message in messages]
        described = _DESCRIPTION.format(tools="\n".join(map(json.dumps, self.described)))
        if told and told[0]["role"] == "system":
            first = told.pop(0)
            described = f"{first['content']}\n\n{described}"
        return [{"role": "system", "content": described}, *told]

    @property
    def callable(self) -> tuple[dict[str, Any], ...]:
        return self.forced or (self.functions if self.allowed is None else self.allowed)

    def grammar(self, marks: CallMarks, answer: Grammar | None) -> Grammar | None:
        """Return the grammar of an answer that calls, or may call; ``answer`` is that of one that does not call."""
        if len(self.forced) == 1:
            return _grammar(self.forced[0])
        if not self.forced and answer is not None and marks.format is None:
            return answer
        loosely = not self.forced and answer is None
        functions = [_function(each, loosely=loosely) for each in self.callable]
        alone = tuple(_grammar(each, loosely=loosely) for each in self.callable)
        rest = None if self.forced else "TEXT" if answer is None else embedded(json.loads(answer.text))
        text = marks.lark(functions, rest, most=self.most, unmarked=self.unmarked)
        return Grammar("lark", text, _TOGETHER, alone if answer is None else (*alone, answer))

    def reader(self, marks: CallMarks, *, formed: bool) -> CallReader:
        """Return what finds calls in an answer, which has a form of its own too where it is ``formed``."""
        known = {each["name"]: _parameters(each) for each in self.callable}
        if len(self.forced) == 1:
            return CallReader(known, self.forced[0]["name"])
        if not self.forced and not formed:
            return CallReader(known, form=marks.format, unmarked="kept" if self.unmarked else "text")
        bare = marks.format is LLAMA or (marks.format is None and bool(self.forced))
        return CallReader(known, form=marks.format, unmarked="kept" if bare else "text")


def _allowed(choice: Mapping[str, Any], given: Sequence[dict[str, Any]]) -> tuple[tuple[dict[str, Any], ...], str]:
    """Return the functions that a choice of type ``allowed_tools`` leaves, and its mode."""
    told = choice.get("allowed_tools", choice)
    mode, tools = (told.get("mode"), told.get("tools")) if isinstance(told, dict) else (None, None)
    if mode not in ("auto", "required") or not isinstance(tools, list) or not tools:
        raise ValueError(
            "a tool_choice of type allowed_tools must have a mode, auto or required, and a list of tools that is not "
            f"empty, but is {short_repr(choice)}"
        )
    names = [each.get("function", each).get("name") if isinstance(each, dict) else each for each in tools]
    return tuple(_chosen("tool_choice", name, given) for name in names), mode


def _chosen(said: str, wanted: Any, given: Sequence[dict[str, Any]]) -> dict[str, Any]:
    for each in given:
        if each["name"] == wanted:
            return each
    known = ", ".join(each["name"] for each in given) or "none"
    raise ValueError(f"{said} names {short_repr(wanted)}, but the tools are: {known}")


def _as_text(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message with its calls, or a function's result, as text."""
    content = message.get("content") or ""
    if message["role"] in ("tool", "function"):
        return {"role": "user", "content": f"<tool_response>\n{content}\n</tool_response>"}
    calls = [each.get("function") for each in message.get("tool_calls") or []]
    written = [
        f"{HERMES.opening}{HERMES.before}"
        f"{json.dumps({'name': each.get('name'), 'arguments': each.get('arguments')})}{HERMES.after}"
        for each in calls
        if isinstance(each, Mapping)
    ]
    if not written:
        return dict(message)
    return {"role": message["role"], "content": "\n".join([content] * bool(content) + written)}


def _grammar(function: Mapping[str, Any], base: str = "#", *, loosely: bool = False) -> Grammar:
    """Return the grammar of a function's arguments: any object, where its schema is not kept and need not be."""
    name, parameters = _named(function), _parameters(function)
    try:
        if parameters["type"] != "object":
            raise ValueError(f"{name} must be of type object, but is {short_repr(parameters['type'])}")
        return Grammar("json_schema", json.dumps(checked_schema(name, parameters, base, closed=True)), name)
    except ValueError:
        if not loosely or function.get("strict") is True:
            raise
        return Grammar("json_schema", '{"type": "object"}', name)


_FREE_KEYS = frozenset(["properties", "patternProperties", "additionalProperties", "$ref", "anyOf", "oneOf", "allOf"])


def _parameters(function: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of a function's arguments, which are an object; one that names no property has none."""
    given: dict[str, Any] = {"type": "object"} | (function.get("parameters") or {})
    return given if _FREE_KEYS.intersection(given) else given | {"additionalProperties": False}


def _function(function: Mapping[str, Any], *, loosely: bool) -> Function:
    schema = json.loads(_grammar(function, "#/$defs/t", loosely=loosely).text)
    return Function(function["name"], schema, exact=not loosely or function.get("strict") is True)


def _named(function: Mapping[str, Any]) -> str:
    return f"the JSON schema of the tool {short_repr(function['name'])}"


def forms_of(values: Mapping[str, Any]) -> list[str]:
    """Return the fields of a request that say what its answer looks like."""
    forms = [name for name in _FORMS if values.get(name, "") != ""]
    if values.get("response_format", {}).get("type") == "text":
        forms.remove("response_format")
    return forms


def form_of(
    values: Mapping[str, Any], tools: Tools | None, marks: CallMarks = NO_MARKS
) -> Grammar | tuple[str, ...] | None:
    """Return the grammar of what a request's answer must look like, or the answers of which it is one."""
    forms = forms_of(values)
    if tools is not None and tools.forced:
        # the form of an answer that is text, which a forced call is not
        forms = [name for name in forms if name != "response_format"] + ["tools"]
    if len(forms) > 1:
        raise ValueError(f"{forms[0]} and {forms[1]} exclude each other: each says what the answer looks like")
    answer = None
    if forms not in ([], ["tools"]):
        with errors_about(forms[0]):
            answer = _answer(forms[0], values)
    if tools is None or isinstance(answer, tuple) or (answer is not None and answer.kind != "json_schema"):
        return answer
    with errors_about("tools"):
        return tools.grammar(marks, answer)


def _answer(form: str, values: Mapping[str, Any]) -> Grammar | tuple[str, ...] | None:
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
        raise ValueError(f"structured_outputs must have one of {', '.join(_STRUCTURED)}, but has {short_repr(named)}")
    [name] = named
    value, called = given[name], f"{name} of structured_outputs"
    if name == "choice":
        return check_choices(value, called)
    if name == "json":
        return schema_choices(value, called) or schema_grammar(called, value)
    if not isinstance(value, str):
        raise TypeError(f"{called} must be a text, but is {short_repr(value)}")
    return Grammar("regex" if name == "regex" else "gbnf", value, called)
