"""The marks between which a model writes calls, and the grammar of an answer that has them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cactus_decoding.core.constraints.compiling import JSON_OPTIONS
from cactus_decoding.engines.openai.tool_calls import LLAMA, ToolFormat, format_of

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
        references have for them; ``rest`` stands for an answer without calls, None where it must call.
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
