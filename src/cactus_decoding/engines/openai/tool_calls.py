"""Calls of functions as models write them, found in a text that grows."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Collection, Generator
from contextlib import suppress
from dataclasses import dataclass
from string import ascii_lowercase
from typing import Any


@dataclass(frozen=True)
class ToolFormat:
    """How a model writes calls, as its chat template teaches it."""

    name: str
    opening: str  # the mark before a call, or before the first one of several
    before: str
    between: str
    after: str
    arguments: str = "arguments"  # the key of a call's arguments
    repeats: bool = False  # whether each call has a mark of its own


HERMES = ToolFormat("hermes", "<tool_call>", "\n", "", "\n</tool_call>", repeats=True)
MISTRAL = ToolFormat("mistral", "[TOOL_CALLS]", "[", ", ", "]")
LLAMA = ToolFormat("llama3", "<|python_tag|>", "", "; ", "", arguments="parameters")
TOOL_CALL_FORMATS = (HERMES, MISTRAL, LLAMA)


def format_of(template: str | None) -> ToolFormat | None:
    """Return the format that a chat template teaches, by its marks; None for one that teaches none of these."""
    marks = {HERMES: HERMES.opening, MISTRAL: MISTRAL.opening, LLAMA: '"parameters"'}
    text = template or ""
    if "<function=" in text or ("[ARGS]" in text and MISTRAL.opening in text):
        return None  # calls that are no JSON object, which are read or stay text
    return next((each for each, mark in marks.items() if mark in text and "tools" in text), None)


_ANY = (HERMES.opening, MISTRAL.opening, LLAMA.opening)  # read whatever the template teaches
_FENCE, _CLOSING = "```", "</tool_call>"
_NAME, _ARGUMENTS = "name", ("arguments", "parameters")
_BARE_KEYS = (_NAME, *_ARGUMENTS, "type", "id", "index")  # of calls without a mark; other objects are text
_PLAIN = re.compile(r"[^<\[`]+")  # in which no mark begins
_WORD = re.compile(r"[\w.-]")
_SPACE, _AFTER_VALUE = " \t\n\r", " \t\n\r,}]"
_TOKENS = frozenset(_AFTER_VALUE + "{[:+-.0123456789eEtrufalsn")  # of JSON, outside of strings

Reading = Generator[None, None, None]


class _EndedError(Exception):
    """The text ends where more of it was needed."""


class CallReader:
    r"""What an answer says and calls, read as it grows: in what pieces it comes makes no difference.

    Read are Hermes' and Qwen's ``<tool_call>``, Mistral's ``[TOOL_CALLS]``, Llama's ``<|python_tag|>``, and JSON that
    is fenced or begins the text, where they name a function that is known. All else is text. A call is told as soon as
    its arguments begin, and these as they are written. Arguments that are JSON within JSON, or that come before the
    name, are told as a whole.

    ``names`` are those of the functions. ``alone`` is the one whose arguments the answer is, where there is no other
    choice.

    Example:
        >>> reader = CallReader(["add"])
        >>> said, call = reader.more('So:\n<tool_call>\n{"name": "add", "arguments": {"a": 1', done=False)
        >>> said, call["function"]
        ('So:', {'name': 'add', 'arguments': '{"a": 1'})
        >>> reader.more("}}\n</tool_call>", done=True)
        [{'index': 0, 'function': {'arguments': '}'}}]
    """

    def __init__(self, names: Collection[str], alone: str | None = None) -> None:
        self._names, self._text, self._done = names, "", False
        self._at = 0  # what stands before it is told
        self._blank = ""  # space that is said if text follows it
        self._new = list[str | dict[str, Any]]()  # not yet returned
        self._has_said, self.number = False, 0  # of calls
        self._called_last = False
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
        self._blank, self._called_last = "", True
        call = {"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": {"name": name, "arguments": ""}}
        self._new.append({"index": self.number} | call)
        self.number += 1

    def _argue(self, text: str) -> None:
        if not self._new or isinstance(self._new[-1], str):
            self._new.append({"index": self.number - 1, "function": {"arguments": ""}})
        call: Any = self._new[-1]
        call["function"]["arguments"] += text

    def _argue_to(self, end: int) -> None:
        if end > self._at:
            self._argue(self._text[self._at : end])
            self._at = end

    # What follows waits for text where it needs more, and looks at nothing else, so that pieces make no difference.

    def _read(self) -> Reading:
        try:
            yield from self._read_calls(0, "")
            while True:
                yield from self._character(self._at)
                if plain := _PLAIN.match(self._text, self._at):
                    self._say_to(plain.end())
                    continue
                mark, end = yield from self._mark()
                if mark == "" or not (yield from self._read_calls(end, mark)):
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

    def _mark(self) -> Generator[None, None, tuple[str, int]]:
        """Return the mark that begins here and where it ends; none, and the end of a character, for text."""
        for mark in _ANY:
            if (yield from self._matches(self._at, mark)):
                return mark, self._at + len(mark)
        if (yield from self._matches(self._at, _FENCE)):
            end = yield from self._after(self._at + len(_FENCE), ascii_lowercase + "_")
            begins = yield from self._after(end, _SPACE)
            if self._text[begins] in "{[":
                return _FENCE, end
        return "", self._at + 1

    def _read_calls(self, at: int, mark: str) -> Generator[None, None, bool]:
        """Read the calls after a mark and what closes them; return whether there are any."""
        if not (yield from self._read_call(at, mark, _SPACE + "[")):
            return False
        while (yield from self._read_call(self._at, mark, _SPACE + "[,;")):
            pass
        closing = _FENCE if mark == _FENCE else _CLOSING
        try:
            end = yield from self._after(self._at, _SPACE + "]")
            closed = yield from self._matches(end, closing)
        except _EndedError:
            self._at = len(self._text)
            raise
        listed = self._text.rfind("]", self._at, end) + 1
        self._at = end + len(closing) if closed else max(self._at, listed)
        return True

    def _read_call(self, at: int, mark: str, before: str) -> Generator[None, None, bool]:
        at = yield from self._after(at, before)
        if self._text[at] == "{":
            return (yield from self._read_object(at + 1, mark))
        return mark == MISTRAL.opening and (yield from self._read_named(at))

    def _read_named(self, at: int) -> Generator[None, None, bool]:
        """Read a call as newer models of Mistral's write it: ``name[ARGS]{...}``."""
        end = at
        while _WORD.match((yield from self._character(end))):
            end += 1
            if not any(name.startswith(self._text[at:end]) for name in self._names):
                return False
        name = self._text[at:end]
        if (yield from self._matches(end, "[CALL_ID]")):
            end += len("[CALL_ID]")
            while _WORD.match((yield from self._character(end))):
                end += 1
        if name not in self._names or not (yield from self._matches(end, "[ARGS]")):
            return False
        begins = yield from self._after(end + len("[ARGS]"), _SPACE)
        yield from self._tell(name, begins)
        return True

    def _read_object(self, at: int, mark: str) -> Generator[None, None, bool]:
        """Read a call from the first key of its object on; return whether it is one."""
        name, arguments = None, "{}"
        while True:
            key, begins = yield from self._key(at)
            if key is None or (mark not in _ANY and key not in _BARE_KEYS):
                return False
            if key in _ARGUMENTS and name is not None:
                yield from self._tell(name, begins, in_object=True)
                return True
            end = yield from self._value(begins)
            if end is None:
                return False
            value = self._text[begins:end]
            if key == _NAME:
                name = _unquoted(value)
                if name not in self._names:
                    return False
            elif key in _ARGUMENTS:
                arguments = _unquoted(value)
            at = yield from self._after(end, _SPACE)
            if self._text[at] == "}" and name is not None:
                self._begin(name)
                self._argue(arguments)
                self._at = at + 1
                return True
            if self._text[at] != ",":
                return False
            at += 1

    def _tell(self, name: str, at: int, *, in_object: bool = False) -> Reading:
        """Tell a call whose arguments begin here, and read to its end, which is where the text ends at the latest."""
        self._begin(name)
        self._at = at
        try:
            quoted = (yield from self._character(at)) == '"'
            end = yield from self._value(at, strict=False, told=not quoted)
            if quoted:
                self._argue(_unquoted(self._text[at:end]))
            self._at = at = end or at
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
