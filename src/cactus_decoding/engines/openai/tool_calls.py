"""Calls of functions as models write them, found in a text that grows."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Collection, Generator, Mapping
from contextlib import suppress
from string import ascii_lowercase
from typing import Any, Literal

from cactus_decoding.core.constraints.schema import resolved, value_types
from cactus_decoding.engines.openai.tool_formats import (
    CLOSING,
    END_FUNCTION,
    END_PARAMETER,
    FUNCTION,
    MISTRAL,
    OPENINGS,
    PARAMETER,
    QWEN_XML,
    UNMARKED_BEGINS,
    UNMARKED_GOES_ON,
    ToolFormat,
    as_json,
    refuse_constant,
)

_FENCE = "```"
_NAME, _ARGUMENTS = "name", ("arguments", "parameters")
_BARE_KEYS = (_NAME, *_ARGUMENTS, "type", "id", "index")  # of calls without a mark; other objects are text
_PLAIN = re.compile(r"[^<\[`{]+")  # in which nothing begins
_WORD = re.compile(r"[\w.-]")
_SPACE, _AFTER_VALUE = " \t\n\r", " \t\n\r,}]"
_TOKENS = frozenset(_AFTER_VALUE + "{[:+-.0123456789eEtrufalsn")  # of JSON, outside of strings

Reading = Generator[None, None, None]


class _EndedError(Exception):
    """The text ends where more of it was needed."""


class CallReader:
    r"""What an answer says and calls, read as it grows: in what pieces it comes makes no difference.

    Read are Hermes' and Qwen's ``<tool_call>``, with JSON or with tags for each parameter, Mistral's ``[TOOL_CALLS]``,
    Llama's ``<|python_tag|>``, and JSON without a mark; all where they name a function that is known. All else is text.

    Arguments are always a JSON object, but for the last call of an answer that is cut. Where a constraint sees to that
    (``form``, ``unmarked``), a call is told as soon as its arguments begin, and these as they are written. Any other
    call is told as a whole, once its arguments have been found to be an object. Where they are none, it is text.

    Args:
        tools: the functions' names, perhaps with the schema of each one's parameters, which says the types of tags.
        alone: the function whose arguments the answer is, where there is no other choice.
        form: the format to which a constraint holds calls with a mark; None where there is none.
        unmarked: what JSON without a mark is that names a function: a call that a constraint holds to its form
            (``kept``), a call if it turns out to be one (``read``), or ``text``.

    Example:
        >>> from cactus_decoding.engines.openai.tool_formats import HERMES
        >>> reader = CallReader(["add"], form=HERMES)
        >>> said, call = reader.more('So:\n<tool_call>\n{"name": "add", "arguments": {"a": 1', done=False)
        >>> said, call["function"]
        ('So:', {'name': 'add', 'arguments': '{"a": 1'})
        >>> reader.more("}}\n</tool_call>", done=True)
        [{'index': 0, 'function': {'arguments': '}'}}]
    """

    def __init__(
        self,
        tools: Collection[str] | Mapping[str, Any],
        alone: str | None = None,
        *,
        form: ToolFormat | None = None,
        unmarked: Literal["kept", "read", "text"] = "read",
    ) -> None:
        self._tools: Mapping[str, Any] = tools if isinstance(tools, Mapping) else {name: {} for name in tools}
        self._form, self._unmarked = form, unmarked
        self._text, self._done = "", False
        self._at = 0  # what stands before it is told
        self._blank = ""  # space that is said if text follows it
        self._new = list[str | dict[str, Any]]()  # not yet returned
        self._has_said, self.number = False, 0  # of calls
        self._called_last = False
        self._arguments = ""  # of the last call, so far
        self._reading = self._read() if alone is None else self._read_arguments(alone)

    def more(self, piece: str, *, done: bool) -> list[str | dict[str, Any]]:
        """Return what a further piece says, and what it adds to calls, in their order."""
        self._text, self._done = self._text + piece, done
        next(self._reading, None)
        if done and not self._called_last:
            self._say(self._blank)
        new, self._new = self._new, []
        return new

    def whole(self, text: str) -> tuple[str | None, list[dict[str, Any]]]:
        """Return what an answer says, None if it only calls, and its calls as OpenAI's API has them."""
        parts = self.more(text, done=True)
        said = "".join(part for part in parts if isinstance(part, str))
        calls = [part for part in parts if isinstance(part, dict)]
        for call in calls:
            del call["index"]
        return (said or None) if calls else said, calls

    @property
    def is_cut(self) -> bool:
        """Whether the last call has no whole arguments, because the answer ends within them."""
        return self.number > 0 and _object_text(self._arguments) is None

    def _say(self, text: str) -> None:
        if self._new and isinstance(self._new[-1], str):
            self._new[-1] += text
        elif text:
            self._new.append(text)

    def _say_to(self, end: int) -> None:
        spoken = self._blank + self._text[self._at : end]
        said, self._at = spoken.rstrip(), end
        self._blank = spoken[len(said) :]
        if said:
            self._say(said.lstrip() if self.number and not self._has_said else said)
            self._has_said, self._called_last = True, False

    def _begin(self, name: str) -> None:
        self._blank, self._called_last, self._arguments = "", True, ""
        call = {"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": {"name": name, "arguments": ""}}
        self._new.append({"index": self.number} | call)
        self.number += 1

    def _argue(self, text: str) -> None:
        if not text:
            return
        if not self._new or isinstance(self._new[-1], str):
            self._new.append({"index": self.number - 1, "function": {"arguments": ""}})
        call: Any = self._new[-1]
        call["function"]["arguments"] += text
        self._arguments += text

    def _argue_to(self, end: int) -> None:
        if end > self._at:
            self._argue(self._text[self._at : end])
            self._at = end

    # What follows waits for text where it needs more, and looks at nothing else, so that pieces make no difference.

    def _read(self) -> Reading:
        try:
            while True:
                yield from self._character(self._at)
                if plain := _PLAIN.match(self._text, self._at):
                    self._say_to(plain.end())
                    continue
                mark, end, begins = yield from self._beginning()
                if begins is None or not (yield from self._read_calls(begins, mark)):
                    self._say_to(end)
        except _EndedError:
            self._say_to(len(self._text))

    def _read_arguments(self, name: str) -> Reading:
        self._begin(name)
        while True:
            self._argue_to(len(self._text))
            yield

    def _character(self, at: int) -> Generator[None, None, str]:
        while at >= len(self._text):
            if self._done:
                raise _EndedError
            yield
        return self._text[at]

    def _matches(self, at: int, text: str) -> Generator[None, None, bool]:
        for place, expected in enumerate(text, at):
            if (yield from self._character(place)) != expected:
                return False
        return True

    def _after(self, at: int, characters: str) -> Generator[None, None, int]:
        while (yield from self._character(at)) in characters:
            at += 1
        return at

    def _beginning(self) -> Generator[None, None, tuple[str, int, int | None]]:
        """Return the mark that stands here, where it ends, and where calls after it would begin; None for text."""
        for mark in (*OPENINGS, FUNCTION):
            if (yield from self._matches(self._at, mark)):
                end = self._at + len(mark)
                return mark, end, self._at if mark == FUNCTION else end
        end = self._at + 1
        if self._unmarked == "text" or self._text[self._at] == "<":
            return "", end, None
        mark, at = "", self._at
        if self._text[at] == "`":
            if not (yield from self._matches(at, _FENCE)):
                return "", end, None
            mark, end = _FENCE, (yield from self._after(at + len(_FENCE), ascii_lowercase + "_"))
            at = yield from self._after(end, _SPACE)
        begins = (yield from self._after(at + 1, _SPACE)) if self._text[at] == "[" else at
        return mark, end, begins if self._text[begins] == "{" else None

    def _read_calls(self, at: int, mark: str) -> Generator[None, None, bool]:
        """Read the calls after a mark and what closes them; return whether there are any."""
        if not (yield from self._read_call(at, mark, _SPACE + "[", kept=self._is_kept(mark))):
            return False
        kept = self._is_kept(mark, first=False)
        while (yield from self._read_call(self._at, mark, _SPACE + "[,;", kept=kept)):
            pass
        closing = _FENCE if mark == _FENCE else CLOSING
        try:
            end = yield from self._after(self._at, _SPACE + "]")
            closed = yield from self._matches(end, closing)
        except _EndedError:
            self._at = len(self._text)
            raise
        listed = self._text.rfind("]", self._at, end) + 1
        self._at = end + len(closing) if closed else max(self._at, listed)
        return True

    def _read_call(self, at: int, mark: str, before: str, *, kept: bool) -> Generator[None, None, bool]:
        at = yield from self._after(at, before)
        if self._text[at] == "{":
            return mark != FUNCTION and (yield from self._read_object(at + 1, mark, kept=kept))
        if mark in (QWEN_XML.opening, FUNCTION) and (yield from self._matches(at, FUNCTION)):
            return (yield from self._read_function(at + len(FUNCTION), kept=self._form is QWEN_XML))
        return mark == MISTRAL.opening and (yield from self._read_named(at, kept=kept))

    def _name(self, at: int, end: str) -> Generator[None, None, str | None]:
        """Return the function's name that stands here before an end; None where there is none that is known."""
        stop = at
        while not (yield from self._matches(stop, end)):
            stop += 1
            if not any(name.startswith(self._text[at:stop]) for name in self._tools):
                return None
        return self._text[at:stop] if self._text[at:stop] in self._tools else None

    def _read_named(self, at: int, *, kept: bool) -> Generator[None, None, bool]:
        """Read a call as newer models of Mistral's write it: ``name[ARGS]{...}``."""
        name = yield from self._name(at, "[")
        if name is None:
            return False
        end = at + len(name)
        if (yield from self._matches(end, "[CALL_ID]")):
            end += len("[CALL_ID]")
            while _WORD.match((yield from self._character(end))):
                end += 1
        if not (yield from self._matches(end, "[ARGS]")):
            return False
        begins = yield from self._after(end + len("[ARGS]"), _SPACE)
        if kept:
            yield from self._tell(name, begins)
            return True
        end_of_value = (yield from self._value(begins)) if self._text[begins] == "{" else None
        return end_of_value is not None and self._tell_whole(name, self._text[begins:end_of_value], end_of_value)

    def _read_object(self, at: int, mark: str, *, kept: bool) -> Generator[None, None, bool]:
        """Read a call from the first key of its object on; return whether it is one."""
        name, arguments, first = None, "{}", at
        while True:
            key, begins = yield from self._key(at)
            if key is None or (mark not in OPENINGS and key not in _BARE_KEYS):
                return False
            if key in _ARGUMENTS and name is not None and kept and self._text[begins] == "{":
                quoted = re.escape(json.dumps(name)[1:-1])
                if re.fullmatch(UNMARKED_BEGINS[2:] + quoted + UNMARKED_GOES_ON + r"\s*", self._text[first:begins]):
                    yield from self._tell(name, begins, in_object=True)
                    return True
            end = yield from self._value(begins)
            if end is None:
                return False
            value = self._text[begins:end]
            if key == _NAME:
                name = _unquoted(value)
                if name not in self._tools:
                    return False
            elif key in _ARGUMENTS:
                arguments = value
            at = yield from self._after(end, _SPACE)
            if self._text[at] == "}" and name is not None:
                if kept and not self._has_required(name, arguments):
                    return False  # as in {"name": "add"}, of which the constraint holds nothing
                return self._tell_whole(name, arguments, at + 1)
            if self._text[at] != ",":
                return False
            at += 1

    def _read_function(self, at: int, *, kept: bool) -> Generator[None, None, bool]:
        """Read a call from its function's name on: a tag for each parameter, whose text has the type of its schema."""
        name = yield from self._name(at, ">")
        if name is None:
            return False
        told, number, seen = "", self.number, set[str]()
        at += len(name) + 1

        def tell(text: str) -> str:
            if kept:
                if self.number == number:
                    self._begin(name)
                self._argue(text)
            return told + text

        if kept:
            told = tell("")
        try:
            while True:
                at = yield from self._after(at, _SPACE)
                if (yield from self._matches(at, END_FUNCTION)):
                    break
                if not (yield from self._matches(at, PARAMETER)):
                    if not kept:
                        return False
                    at += 1  # what a constraint does not let through
                    continue
                begins = yield from self._find(at, ">")
                key, begins = self._text[at + len(PARAMETER) : begins], begins + 1
                schema, whole = _property(self._tools[name], key), self._tools[name]
                if key not in seen:
                    told = tell((", " if seen else "{") + json.dumps(key, ensure_ascii=False) + ": ")
                if kept and key not in seen and value_types(schema, whole) == {"string"}:
                    end = yield from self._tell_text(begins)
                else:
                    end = yield from self._find(begins, END_PARAMETER)
                    if key not in seen:
                        told = tell(as_json(self._text[begins:end], schema, whole))
                seen.add(key)
                at = end + len(END_PARAMETER)
        except _EndedError:
            if kept:
                self._at = len(self._text)
            raise
        end = at + len(END_FUNCTION)
        if not kept:
            return self._tell_whole(name, told + ("}" if seen else "{}"), end)
        tell("}" if seen else "{}")
        self._at = end
        return True

    def _find(self, at: int, text: str) -> Generator[None, None, int]:
        while (found := self._text.find(text, at)) < 0:
            at = max(at, len(self._text) - len(text) + 1)
            yield from self._character(len(self._text))
        return found

    def _tell_text(self, at: int) -> Generator[None, None, int]:
        """Tell a parameter's text as it is written, without a line break on either side; return where its tag ends."""
        at += (yield from self._character(at)) == "\n"
        self._argue('"')
        while (end := self._text.find(END_PARAMETER, at)) < 0:
            safe = max(at, len(self._text) - len(END_PARAMETER))
            self._argue(json.dumps(self._text[at:safe], ensure_ascii=False)[1:-1])
            at = safe
            yield from self._character(len(self._text))
        self._argue(json.dumps(self._text[at:end].removesuffix("\n"), ensure_ascii=False)[1:])
        return end

    def _is_kept(self, mark: str, *, first: bool = True) -> bool:
        """Return whether a constraint holds the calls after a mark, or those after the first one, to their form."""
        form = self._form
        if mark in ("", _FENCE) or (form is not None and form.repeats and not first):
            return self._unmarked == "kept"
        return form is not None and mark == form.opening

    def _has_required(self, name: str, arguments: str) -> bool:
        schema = self._tools[name]
        required = resolved(schema, schema).get("required", ())
        return all(each in json.loads(_object_text(arguments) or "{}") for each in required)

    def _tell_whole(self, name: str, arguments: str, end: int) -> bool:
        """Tell a call that ends here if its arguments are an object; return whether they are."""
        found = _object_text(arguments)
        if found is None:
            return False
        self._begin(name)
        self._argue(found)
        self._at = end
        return True

    def _tell(self, name: str, at: int, *, in_object: bool = False) -> Reading:
        """Tell a call whose arguments begin here, and read to its end, which is where the text ends at the latest."""
        self._begin(name)
        self._at = at
        try:
            at = (yield from self._value(at, strict=False, told=True)) or at
            self._at = at
            while in_object:  # what else it says is left out
                at = yield from self._after(at, _SPACE)
                if self._text[at] == "}":
                    self._at = at + 1
                    return
                if self._text[at] != ",":
                    return
                key, at = yield from self._key(at + 1)
                if key is None or (end := (yield from self._value(at))) is None:
                    return
                at = end
        except _EndedError:
            self._at = len(self._text)
            raise

    def _key(self, at: int) -> Generator[None, None, tuple[str | None, int]]:
        """Return an object's next key and where its value begins; None where there is no key."""
        at = yield from self._after(at, _SPACE)
        end = (yield from self._value(at)) if self._text[at] == '"' else None
        if end is None:
            return None, at
        key, end = _unquoted(self._text[at:end]), (yield from self._after(end, _SPACE))
        return (None, end) if self._text[end] != ":" else (key, (yield from self._after(end + 1, _SPACE)))

    def _value(self, at: int, *, strict: bool = True, told: bool = False) -> Generator[None, None, int | None]:
        """Return where a JSON value ends; where it is ``strict``, None for what JSON cannot hold.

        A value that is ``told`` is an argument, which is told as far as it is written.
        """
        depth, quoted, escaped, ended = 0, False, False, False
        while not ended:
            if at == len(self._text):
                if told:
                    self._argue_to(at)
                yield from self._character(at)
            character = self._text[at]
            at += 1
            if quoted:
                if strict and character < " ":
                    return None
                quoted = escaped or character != '"'
                escaped = character == "\\" and not escaped
                ended = not quoted and depth == 0
            elif character == '"':
                quoted = True
            elif character in "{[":
                depth += 1
            elif depth == 0 and character in _AFTER_VALUE:
                at, ended = at - 1, True
            elif character in "}]":
                depth -= 1
                ended = depth == 0
            elif strict and character not in _TOKENS:
                return None
        if told:
            self._argue_to(at)
        return at


def _unquoted(value: str) -> str:
    """Return what a JSON string says; other JSON, and what is no JSON, as it is."""
    if value.startswith('"'):
        with suppress(ValueError):
            return str(json.loads(value, strict=False))
    return value


def _object_text(value: str) -> str | None:
    """Return the JSON object that arguments are, perhaps as JSON within JSON; None where they are none."""
    try:
        said = json.loads(value, parse_constant=refuse_constant)
        if isinstance(said, str):
            value, said = said, json.loads(said or "{}", parse_constant=refuse_constant)
        if said is None or value == "":
            return "{}"
    except (ValueError, RecursionError):
        return None
    return value if isinstance(said, dict) else None


def _property(schema: Any, name: str) -> Any:
    properties = resolved(schema, schema).get("properties")
    return properties.get(name, {}) if isinstance(properties, dict) else {}
