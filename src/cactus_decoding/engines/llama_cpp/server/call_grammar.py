"""Grammars of answers that call functions: text is free until a call opens, and a call has its format's form."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cactus_decoding.core.checks import short_repr
from cactus_decoding.core.constraints.compiling import JSON_OPTIONS
from cactus_decoding.core.constraints.schema import named_values, resolved, value_types
from cactus_decoding.engines.openai.tool_formats import (
    END_PARAMETER,
    FUNCTION,
    HERMES,
    LLAMA,
    PARAMETER,
    UNMARKED,
    UNMARKED_BEGINS,
    UNMARKED_GOES_ON,
    ToolFormat,
    format_of,
)

_BEFORE_ARGUMENTS, _AFTER_ARGUMENTS = r"/[ \t\n\r]{0,8}/", r"/[ \t\n\r]{0,8}\}/"
_VALUE = r"value[lazy]: /(.|\n)*<\/parameter>/"
_FREE = 'free: "<parameter=" /[^<>\\n]{1,64}/ ">\\n" value "\\n"'
_END = f"\n{END_PARAMETER}\n"
_TEXT_LIMITS = frozenset(["pattern", "minLength", "maxLength"])
_REMARKS = frozenset(["type", "$defs", "definitions"])


@dataclass(frozen=True)
class Function:
    """A function that an answer may call."""

    name: str
    schema: Mapping[str, Any]  # of its arguments, as a constraint keeps it; references lead to ``#/$defs/t``
    exact: bool  # whether what tags cannot keep of it is refused


@dataclass(frozen=True)
class CallMarks:
    format: ToolFormat | None  # that the chat template teaches; None where it teaches one that is not known
    special: Mapping[str, int]  # marks that are tokens without a text, by their text; they are shown nevertheless

    @classmethod
    def of(cls, tokenizer: Any) -> CallMarks:
        """Return those that a model's chat template teaches; Hermes' for one that does not speak of tools."""
        template = getattr(tokenizer, "chat_template", None) or ""
        known = format_of(template) if "tools" in template else HERMES
        special = dict[str, int]()
        for mark in (
            () if known is None else {known.opening, known.after.strip(), *re.findall(r"\[[A-Z]+\]", known.head)}
        ):
            ids = list(tokenizer(mark, add_special_tokens=False).input_ids) if mark else []
            if len(ids) == 1 and ids[0] in tokenizer.all_special_ids:
                special[mark] = ids[0]
        return cls(known, special)

    def lark(self, functions: Sequence[Function], rest: str | None, *, most: int, unmarked: bool) -> str:
        """Return the grammar, in Lark, of an answer with calls.

        ``rest`` stands for an answer without calls, None where it must call. If that is ``TEXT``, text is free up to a
        mark, and what follows a mark is a call; with ``unmarked`` a JSON object that names a function is one too. An
        answer has at ``most`` so many calls.
        """
        written = self.format or UNMARKED
        lines, tags = ["%llguidance {}", r"TEXT: /(.|\n)*/"], written.arguments == "xml"
        lines += [_VALUE, _FREE] if tags else []
        for i, each in enumerate(functions):
            lines += [f"xml_{i}: {_tags(each)}"] if tags else []
            if not tags or (unmarked and rest == "TEXT"):
                lines.append(f"json_{i}: {embedded({'$ref': '#/$defs/t', '$defs': {'t': each.schema}})}")
        lines += self._answer(written, functions, rest, most=most, unmarked=unmarked)
        return "\n".join(lines)

    def _answer(
        self, written: ToolFormat, functions: Sequence[Function], rest: str | None, *, most: int, unmarked: bool
    ) -> list[str]:
        heads = [written.head_of(each.name) for each in functions]
        tail = self._lark(written.tail)
        places = range(len(functions))
        lines = [f"head_{i}[lazy]: {json.dumps(head)}" for i, head in enumerate(heads) if not self._has_special(head)]
        named = [self._lark(head) if self._has_special(head) else f"head_{i}" for i, head in enumerate(heads)]
        lines += [f"call_{i}: {named[i]} {written.arguments}_{i} {tail}" for i in places]
        lines += [f"call: {_any('call', places)}"]
        between, after = self._lark(written.between), self._lark(written.after)
        body = f"{self._lark(written.before)} call {after}"
        if not written.repeats:
            body = f"{self._lark(written.before)} call {_up_to(most - 1, f'{between} call')} {after}"
        if rest == "TEXT":
            return lines + self._among_text(written, functions, heads, body, most=most, unmarked=unmarked)
        if written in (LLAMA, UNMARKED):
            start = f"call {_up_to(most - 1, f'{between} call') if written is LLAMA else ''}"
        else:
            opening = self._lark(written.opening)
            lines += [f"tag: {opening} {body}"]
            start = f"tag {_up_to(most - 1, 'NEXT tag')}" if written.repeats else "tag"
            lines += [r'NEXT: "\n"'] if written.repeats and most > 1 else []
        return [*lines, f"start: {start}" if rest is None else f"start: {rest} | {start}"]

    def _among_text(
        self,
        written: ToolFormat,
        functions: Sequence[Function],
        heads: Sequence[str],
        body: str,
        *,
        most: int,
        unmarked: bool,
    ) -> list[str]:
        """Return the rules of an answer in which text is free until a call opens."""
        lines, calls, last, places = list[str](), list[str](), list[str](), range(len(functions))
        if written.opening:
            # a mark that is a token may be spelled as text too, which is read as the same
            lines += [f"tag_begins[lazy]: TEXT {json.dumps(written.opening)}"]
            token = self.special.get(written.opening)
            opened = "tag_begins" if token is None else f"(tag_begins | TEXT <[{token}]>)"
            lines += [f"tag: {opened} {body}"]
            (calls if written.repeats else last).append("tag")
        if written.arguments == "xml":
            tail = self._lark(written.tail)
            lines += [f"function_begins[lazy]: TEXT {json.dumps(FUNCTION)}", f"function: {_any('function', places)}"]
            for i, head in enumerate(heads):
                lines.append(f"function_{i}: function_begins {json.dumps(head.removeprefix(FUNCTION))} xml_{i} {tail}")
            calls.append("function")
        other = ""
        if unmarked:
            lines += [f"other[lazy]: TEXT /{UNMARKED_BEGINS}/", f"object: {_any('object', places)}"]
            for i, each in enumerate(functions):
                goes_on = re.escape(json.dumps(each.name)[1:-1]).replace("/", r"\/") + UNMARKED_GOES_ON
                lines += [
                    f"object_{i}: other named_{i} {_BEFORE_ARGUMENTS} json_{i} {_AFTER_ARGUMENTS}",
                    f"named_{i}[lazy]: /{goes_on}/",
                ]
            calls.append("object")
            other = "other"
        if most > 1:
            repeated = [*calls, other] if other else calls
            several = f"({' | '.join(repeated)})*" if repeated else ""
            return [*lines, f"start: {several} ({' | '.join([*last, 'TEXT'])})"]
        return [*lines, f"start: {'other*' if other else ''} ({' | '.join([*calls, *last, 'TEXT'])})"]

    def _has_special(self, text: str) -> bool:
        return any(mark in text for mark in self.special)

    def _lark(self, text: str) -> str:
        """Return what stands for a text in Lark, of which a part may be a token without a text."""
        for mark, token in self.special.items():
            if mark in text:
                before, _, after = text.partition(mark)
                return " ".join(filter(None, [self._lark(before), f"<[{token}]>", self._lark(after)]))
        return json.dumps(text, ensure_ascii=False) if text else ""


NO_MARKS = CallMarks(None, {})


def _any(name: str, places: Sequence[int]) -> str:
    return " | ".join(f"{name}_{i}" for i in places)


def _up_to(number: int, rule: str) -> str:
    return f"({rule}){{0,{number}}}" if number else ""


def embedded(schema: Mapping[str, Any]) -> str:
    return f"%json {json.dumps({'x-guidance': JSON_OPTIONS} | dict(schema))}"


def _tags(function: Function) -> str:
    """Return what stands for arguments as tags, one for each parameter; names that are free are texts."""
    whole = {"$defs": {"t": function.schema}}
    schema = resolved(function.schema, whole)
    properties, required = schema.get("properties", {}), schema.get("required", [])
    further = schema.get("additionalProperties", True)
    known = {"type", "properties", "required", "additionalProperties", "$defs", "definitions"}
    if not isinstance(properties, dict) or further not in (False, True, {}) or schema.keys() - known:
        if function.exact:
            raise _not_kept(function, "", "an object with named properties")
        return "free*"
    parts = []
    for name, part in properties.items():
        if part is False:
            continue
        if not re.fullmatch(r"[^<>\n]+", name):
            raise _not_kept(function, name, "named without <, > and line breaks")
        tag = f"{json.dumps(f'{PARAMETER}{name}>' + chr(10))} {_text_of(function, name, part, whole)}"
        parts.append(f"({tag})" if name in required else f"({tag})?")
    parts += [] if further is False else ["free*"]
    return " ".join(parts) or '""'


def _text_of(function: Function, name: str, schema: Any, whole: Mapping[str, Any], level: int = 0) -> str:
    """Return what stands for a parameter's text and the end of its tag: a text as it is, and JSON of any other type."""
    part, types, values = resolved(schema, whole), value_types(schema, whole), named_values(schema, whole)
    if "string" not in types:
        return f"({embedded(part | {'$defs': whole['$defs']})} {json.dumps(_END)})"
    if values is not None and not part.keys() & _TEXT_LIMITS:
        texts = [each if isinstance(each, str) else json.dumps(each) for each in values]
        return f"({' | '.join(map(json.dumps, texts))}) {json.dumps(_END)}"
    limits = part.keys() - _REMARKS
    if not limits:
        return 'value "\\n"'
    if types == {"string"} and limits <= _TEXT_LIMITS and (text := _limited(part)) is not None:
        return f"{text} {json.dumps(_END)}"
    if limits in ({"anyOf"}, {"oneOf"}, {"allOf"}) and level < 4:
        [word] = limits
        options = part[word]
        if isinstance(options, list) and options and (word != "allOf" or len(options) == 1):
            texts = [_text_of(function, name, each, whole, level + 1) for each in options]
            return f"({' | '.join(f'({text})' for text in texts)})"
    if others := sorted(types - {"string"}):  # of which JSON is kept, and a text beside it is left out
        return f"({embedded({'allOf': [part], 'type': others, '$defs': whole['$defs']})} {json.dumps(_END)})"
    if function.exact:
        raise _not_kept(function, name, "a text with a length, or with a pattern that is anchored")
    return 'value "\\n"'


def _limited(schema: Mapping[str, Any]) -> str | None:
    """Return a regular expression of texts within limits; None where their pattern does not say so by itself."""
    least, most = schema.get("minLength", 0), schema.get("maxLength", "")
    length = rf"(.|\n){{{least},{most}}}"
    pattern = schema.get("pattern")
    if pattern is None:
        return f"/{length}/"
    inner = re.fullmatch(r"\^(.*)\$", pattern, re.DOTALL)
    if inner is None or {"minLength", "maxLength"} & schema.keys() or "|" in _outside(inner[1]):
        return None
    return f"/{inner[1]}/".replace("\n", r"\n") if "/" not in inner[1] else None


def _outside(pattern: str) -> str:
    """Return what of a pattern stands in no parentheses and no class of characters."""
    plain = re.sub(r"\\.|\[(\\.|[^\]])*\]", "", pattern)
    while (shorter := re.sub(r"\([^()]*\)", "", plain)) != plain:
        plain = shorter
    return plain


def _not_kept(function: Function, name: str, allowed: str) -> ValueError:
    where = f"the parameter {short_repr(name)}" if name else "the parameters"
    return ValueError(
        f"cannot keep the schema of the tool {short_repr(function.name)} in the tags that the model's chat template "
        f"writes: {where} must be {allowed}"
    )
