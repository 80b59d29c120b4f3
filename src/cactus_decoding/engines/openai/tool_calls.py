"""Calls of functions as models write them, found in a text that grows."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple


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
FORMATS = (HERMES, MISTRAL, LLAMA)


def format_of(template: str | None) -> ToolFormat | None:
    """Return the format that a chat template teaches, by its marks; None for one that teaches none of these."""
    marks = {HERMES: HERMES.opening, MISTRAL: MISTRAL.opening, LLAMA: '"parameters"'}
    text = template or ""
    if "<function=" in text or ("[ARGS]" in text and MISTRAL.opening in text):
        return None  # calls that are no JSON object, which are read or stay text
    return next((each for each, mark in marks.items() if mark in text and "tools" in text), None)


class Call(NamedTuple):
    """A call, perhaps the beginning of one."""

    name: str
    arguments: str  # JSON, as far as it is written
    done: bool  # whether that is all of it


_BEGINS = re.compile(
    r"(?P<mark><tool_call>|\[TOOL_CALLS\]|<\|python_tag\|>)"
    r"|(?P<fence>```[a-z_]*(?=\s*[\[{]))"
)
_BARE = re.compile(r"(?P<mark>)(?P<fence>)\s*(?=[\[{])")
_MARKS = ("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|python_tag|>", "```json", "```tool_call")
_HEAD = re.compile(r'[\s\[,;]*\{\s*"name"\s*:\s*"(?P<name>[^"\\]*)"\s*,\s*"(?:arguments|parameters)"\s*:\s*')
_NAMED = re.compile(r"[\s,]*(?P<name>[\w.-]+)(?:\[CALL_ID\]\w*)?\[ARGS\]\s*")
_TAIL = re.compile(r"\s*\}")
_END = re.compile(r"[\s\]]*(?:</tool_call>|```)?")


def find_calls(text: str, names: Collection[str], *, done: bool) -> tuple[str, list[Call]]:
    r"""Return what a text says beside its calls, as far as that is certain, and what it calls.

    Read are Hermes' and Qwen's ``<tool_call>``, Mistral's ``[TOOL_CALLS]``, Llama's ``<|python_tag|>``, and JSON that
    is fenced or begins the text, where they name a function that is known. Whatever is returned of a text is the
    beginning of what is returned of the same text when it has grown.

    Example:
        >>> find_calls('So:\n<tool_call>\n{"name": "add", "arguments": {"a": 1', ["add"], done=False)
        ('So:', [Call(name='add', arguments='{"a": 1', done=False)])
    """
    said, calls, at = "", list[Call](), 0
    begins = _BARE.match(text) or _BEGINS.search(text)
    while begins is not None:
        found, end = _calls_at(text, begins, names, done=done)
        before = text[at : begins.start()]
        if found is None:  # it cannot be told yet
            return _joined(said, before.rstrip(), calls), calls
        if not found:  # it is no call
            said, at = _joined(said, text[at : begins.end()], calls), begins.end()
        else:
            said, calls, at = _joined(said, before.rstrip(), calls), calls + found, end
            if not calls[-1].done:
                return said, calls
        begins = _BEGINS.search(text, at)
    rest = text[at:]
    if calls and not rest.strip():
        return said, calls
    return _joined(said, rest if done else _certain(rest), calls), calls


def _joined(said: str, more: str, calls: list[Call]) -> str:
    return said + (more.lstrip() if calls and not said else more)


def _certain(text: str) -> str:
    """Return a text without an end that may become a mark, and without the space before one."""
    text = text.rstrip()
    held = max((n for mark in _MARKS for n in range(1, len(mark) + 1) if text.endswith(mark[:n])), default=0)
    return text[: len(text) - held].rstrip()


def _calls_at(text: str, begins: re.Match[str], names: Collection[str], *, done: bool) -> tuple[list[Call] | None, int]:
    """Return the calls after a beginning, and where they end; none for text, and None where that cannot be told."""
    calls, at, marked = list[Call](), begins.end(), begins["mark"]
    while True:
        head = _HEAD.match(text, at) or (_NAMED.match(text, at) if marked == MISTRAL.opening else None)
        if head is None or head["name"] not in names:
            break
        call, at = _call_at(text, head, done=done)
        calls.append(call)
        if not call.done:
            return calls, len(text)
    if calls:
        if not done and marked != HERMES.opening and _may_name(text[at:].lstrip(" ,;\n"), names, marked or ""):
            return calls, len(text)  # another one may follow
        after = _END.match(text, at)
        return calls, at if after is None else after.end()
    closing = text.find("</tool_call>" if marked == HERMES.opening else "```", at)
    if marked or begins["fence"]:
        written = text[at:] if closing < 0 else text[at:closing]
        if (closing >= 0 or done) and (whole := _whole(written, names)):
            return [whole], len(text) if closing < 0 else closing + len("</tool_call>" if marked else "```")
    elif done and (whole := _whole(text[at:], names)):
        return [whole], len(text)
    may_become = not done and closing < 0 and (marked == HERMES.opening or _may_name(text[at:], names, marked or ""))
    return (None if may_become else []), at


def _call_at(text: str, head: re.Match[str], *, done: bool) -> tuple[Call, int]:
    start = head.end()
    end = value_end(text, start)
    if end is None:
        held = text[start : start + 1] == '"'  # JSON within JSON, which is known as a whole only
        return Call(head["name"], "" if held else text[start:], False), len(text)
    given = text[start:end]
    if given.startswith('"'):
        with suppress(ValueError):
            given = str(json.loads(given))
    tail = _TAIL.match(text, end)
    return Call(head["name"], given, True), end if tail is None else tail.end()


def value_end(text: str, start: int) -> int | None:
    """Return where a JSON value ends that begins somewhere; None where it does not end in the text.

    Example:
        >>> value_end('{"a": "}"} and', 0), value_end('[1, 2', 0)
        (10, None)
    """
    if text[start : start + 1] not in ("{", "[", '"'):
        found = re.compile(r"[^\s,}\]]+(?=[\s,}\]])").match(text, start)
        return None if found is None else found.end()
    depth = 0
    for token in re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]]|"', re.DOTALL).finditer(text, start):
        if token[0] == '"':
            return None
        depth += (token[0] in "{[") - (token[0] in "}]")
        if depth == 0:
            return token.end()
    return None


def _whole(written: str, names: Collection[str]) -> Call | None:
    """Return the call that JSON is, in whatever order its keys come."""
    try:
        value = json.loads(written)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or value.get("name") not in [*names]:
        return None
    given = value.get("arguments", value.get("parameters", {}))
    return Call(value["name"], given if isinstance(given, str) else json.dumps(given, ensure_ascii=False), True)


def _may_name(text: str, names: Collection[str], marked: str) -> bool:
    """Return whether a text may still become the head of a known function's call."""
    written = "".join(text.split()).removeprefix("[")
    forms = [f'{{"name":"{name}","{key}":' for name in names for key in ("arguments", "parameters")]
    forms += [f"{name}[ARGS]" for name in names] if marked == MISTRAL.opening else []
    return any(form.startswith(written) for form in forms)


@dataclass
class CallReader:
    """What an answer says and calls, whole or bit by bit."""

    names: Collection[str]  # of the functions that may be called
    alone: str | None = None  # the function whose arguments the answer is, where there is no other choice
    _ids: list[str] = field(default_factory=list)
    _told: list[int] = field(default_factory=list)
    _said: int = 0

    def read(self, text: str, *, done: bool) -> tuple[str, list[Call]]:
        if self.alone is not None:
            return "", [Call(self.alone, text, done)]
        return find_calls(text, self.names, done=done)

    def whole(self, text: str) -> tuple[str | None, list[dict[str, Any]]]:
        """Return what an answer says, None if it only calls, and its calls as OpenAI's API has them."""
        said, calls = self.read(text, done=True)
        return (said or None) if calls else text, [
            self._identified(number) | {"function": {"name": call.name, "arguments": call.arguments}}
            for number, call in enumerate(calls)
        ]

    def more(self, text: str, *, done: bool) -> tuple[str, list[dict[str, Any]], int]:
        """Return what is new of what an answer says and calls, and how many calls there are so far."""
        said, calls = self.read(text, done=done)
        if done and not calls:
            said = text
        new, self._said = said[self._said :], max(self._said, len(said))
        deltas = []
        for number, call in enumerate(calls):
            if number == len(self._told):
                self._told.append(len(call.arguments))
                function = {"name": call.name, "arguments": call.arguments}
                deltas.append({"index": number} | self._identified(number) | {"function": function})
            elif len(call.arguments) > self._told[number]:
                deltas.append({"index": number, "function": {"arguments": call.arguments[self._told[number] :]}})
                self._told[number] = len(call.arguments)
        return new, deltas, len(calls)

    def _identified(self, number: int) -> dict[str, Any]:
        while len(self._ids) <= number:
            self._ids.append(f"call_{secrets.token_hex(12)}")
        return {"id": self._ids[number], "type": "function"}
