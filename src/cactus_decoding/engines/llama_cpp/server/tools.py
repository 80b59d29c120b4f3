"""Answers of a form: JSON by a schema, and calls of a client's functions between a model's own marks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from cactus_decoding.core.checks import check_choice, short_repr
from cactus_decoding.core.choices import check_choices, enum_choices, schema_choices
from cactus_decoding.core.constraints.base import Grammar, as_grammar, schema_grammar
from cactus_decoding.core.constraints.compiling import JSON_OPTIONS
from cactus_decoding.core.constraints.schema import checked_schema
from cactus_decoding.engines.openai.keys import errors_about
from cactus_decoding.engines.openai.tool_calls import HERMES, LLAMA, CallReader, ToolFormat, format_of

_TEXT = r"TEXT: /(.|\n)*/"


@dataclass(frozen=True)
class CallMarks:
    format: ToolFormat  # that its chat template teaches
    special: Mapping[str, int]  # marks that are tokens without a text, by their text; they are shown nevertheless

    @classmethod
    def of(cls, tokenizer: Any) -> CallMarks | None:
        """Return those that a model's chat template teaches; None where it teaches none that are known."""
        known = format_of(getattr(tokenizer, "chat_template", None))
        if known is None:
            return None
        special = dict[str, int]()
        for mark in {known.opening, known.after.strip()} - {""}:
            ids = list(tokenizer(mark, add_special_tokens=False).input_ids)
            if len(ids) == 1 and ids[0] in tokenizer.all_special_ids:
                special[mark] = ids[0]
        return cls(known, special)

    def lark(self, names: Sequence[str], parts: Mapping[str, Any], rest: str | None, *, most: int) -> str:
        """Return the grammar, in Lark, of an answer with calls.

        Text is free up to the first mark, and what follows a mark is a call. So nothing is known of an answer that
        calls nothing, and a call is JSON by the function's schema. ``parts`` are these schemas, by the names that
        references have for them; ``rest`` stands for an answer without calls, None where it must call. An answer has at
        ``most`` so many calls.
        """
        written = self.format
        calls = [
            written_call(name, f"#/$defs/{part}", written.arguments) for part, name in zip(parts, names, strict=True)
        ]
        lines = ["%llguidance {}", f"call: {embedded({'anyOf': calls, '$defs': dict(parts)})}", _TEXT]
        after = written.after and self._lark(written.after)
        one = f"{self._lark(written.before)} call {after}"
        many = f"{self._lark(written.before)} call {_up_to(most - 1, f'{self._lark(written.between)} call')} {after}"
        if written is LLAMA:
            return "\n".join([*lines, *self._bare(names, parts, rest, most)])
        before = "TEXT" if rest == "TEXT" else ""
        lines += self._opened("tag", before, one if written.repeats else many)
        if not written.repeats:
            start = "tag" if rest is None else f"{rest} | tag"
        elif rest == "TEXT":
            start = "TEXT | tag" if most == 1 else "tag* TEXT"
        else:
            lines += self._opened("more", '"\\n"', one)
            tags = f"tag {_up_to(most - 1, 'more')}"
            start = tags if rest is None else f"{rest} | {tags}"
        return "\n".join([*lines, f"start: {start}"])

    def _opened(self, name: str, before: str, body: str) -> list[str]:
        """Return the rule of what follows a mark, which free text may stand before."""
        opening = self._lark(self.format.opening)
        if before != "TEXT" or self.format.opening in self.special:
            return [f"{name}: {before} {opening} {body}"]
        return [f"{name}: {name}_begins {body}", f"{name}_begins[lazy]: TEXT {opening}"]

    def _bare(self, names: Sequence[str], parts: Mapping[str, Any], rest: str | None, most: int) -> list[str]:
        """Return the rules of calls that begin the answer without a mark, or with one that may be left out."""
        lines = []
        for part, name in zip(parts, names, strict=True):
            head = json.dumps(f'{{"name": {json.dumps(name)}, "{self.format.arguments}": ')
            schema = embedded({"$ref": f"#/$defs/{part}", "$defs": dict(parts)})
            lines += [f'item_{part}: head_{part} {schema} "}}"', f"head_{part}[lazy]: {head}"]
        item = " | ".join(f"item_{part}" for part in parts)
        mark = f"{self._lark(self.format.opening)} call | " if self.format.opening in self.special else ""
        between = self._lark(self.format.between)
        start = f"item {_up_to(most - 1, f'{between} item')}"
        return [*lines, f"item: {mark}{item}", f"start: {start}" if rest is None else f"start: {rest} | {start}"]

    def _lark(self, text: str) -> str:
        """Return what stands for a text in Lark, of which a part may be a token without a text."""
        for mark, token in self.special.items():
            if mark in text:
                before, _, after = text.partition(mark)
                return " ".join(filter(None, [self._lark(before), f"<[{token}]>", self._lark(after)]))
        return json.dumps(text, ensure_ascii=False) if text else ""


def _up_to(number: int, rule: str) -> str:
    return f"({rule}){{0,{number}}}" if number else ""


def embedded(schema: Mapping[str, Any]) -> str:
    return f"%json {json.dumps({'x-guidance': JSON_OPTIONS} | dict(schema))}"


def written_call(name: str, arguments: str, key: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"name": {"const": name}, key: {"$ref": arguments}},
        "required": ["name", key],
        "additionalProperties": False,
    }


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
        if isinstance(choice, str):
            check_choice(name, choice, ("none", "auto", "required"))
            if not given and choice == "required":
                raise ValueError(f"{name} is 'required', but the request has no tools")
            functions = tuple(given)
            forced = functions * (choice == "required")
            return None if not given or choice == "none" else cls(functions, forced, legacy, most)
        wanted = (choice if legacy else choice.get("function") or {}).get("name")
        chosen = tuple(each for each in given if each["name"] == wanted)
        if not chosen:
            known = ", ".join(each["name"] for each in given) or "none"
            raise ValueError(f"{name} names {short_repr(wanted)}, but the tools are: {known}")
        return cls(tuple(given), chosen, legacy, most)

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

    def grammar(self, marks: CallMarks | None, answer: Grammar | None) -> Grammar | None:
        """Return the grammar of an answer that calls, or may call; None where nothing is certain of its form."""
        if len(self.forced) == 1:
            return schema_grammar(_named(self.forced[0]), _parameters(self.forced[0]), closed=True)
        if not self.forced and marks is None:
            return answer
        functions = self.forced or self.functions
        loosely = not self.forced and answer is None
        alone = tuple(_grammar(each, loosely=loosely) for each in functions)
        parts = {
            f"t{i}": json.loads(_grammar(each, f"#/$defs/t{i}", loosely=loosely).text)
            for i, each in enumerate(functions)
        }
        if marks is None:
            calls = [
                written_call(each["name"], f"#/$defs/{part}", "arguments")
                for part, each in zip(parts, functions, strict=True)
            ]
            return Grammar("json_schema", json.dumps({"anyOf": calls, "$defs": parts}), _TOGETHER, alone)
        rest = None if self.forced else "TEXT" if answer is None else embedded(json.loads(answer.text))
        text = marks.lark([each["name"] for each in functions], parts, rest, most=self.most)
        return Grammar("lark", text, _TOGETHER, alone if answer is None else (*alone, answer))

    def reader(self) -> CallReader:
        names = [each["name"] for each in self.functions]
        return CallReader(names, self.forced[0]["name"] if len(self.forced) == 1 else None)


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
        return Grammar("json_schema", json.dumps(checked_schema(name, parameters, base, closed=True)), name)
    except ValueError:
        if not loosely or function.get("strict") is True:
            raise
        return Grammar("json_schema", '{"type": "object"}', name)


def _parameters(function: Mapping[str, Any]) -> dict[str, Any]:
    return function.get("parameters") or {"type": "object"}


def _named(function: Mapping[str, Any]) -> str:
    return f"the JSON schema of the tool {short_repr(function['name'])}"


def form_of(
    values: Mapping[str, Any], tools: Tools | None, marks: CallMarks | None = None
) -> Grammar | tuple[str, ...] | None:
    """Return the grammar of what a request's answer must look like, or the answers of which it is one."""
    forms = [name for name in _FORMS if values.get(name, "") != ""]
    if values.get("response_format", {}).get("type") == "text":
        forms.remove("response_format")
    if tools is not None and tools.forced:
        forms.append("tools")
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
